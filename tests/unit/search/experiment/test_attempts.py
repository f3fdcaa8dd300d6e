"""From a plan to a trial, with scripted workers: what is timed, scored and said."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.search.experiment.scripted import (
    EDITS,
    FINAL,
    LOSSY,
    SEARCH,
    Script,
    Scripted,
    scripted,
)
from tests.unit.surveys import SURVEY

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal, Outcome, classify_outcome
from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Event, Note, Timing, TrialDone, TrialStarted, ignore_event
from ortune.core.judgement import decide_status
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.progress import time_limit
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import (
    Block,
    Burst,
    Interval,
    Pair,
    Plan,
    Proposal,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, claim_effort
from ortune.search.abandon import StoppingRule
from ortune.search.experiment import evaluate, measure
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.ledger import Ledger
from ortune.search.experiment.measure import Files
from ortune.search.experiment.surveys import read_journal
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.recipe.shared import SharedCache


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script
) -> Iterator[Attempts]:
    with ExitStack() as stack:
        yield Attempts(scripted(tmp_path, monkeypatch, script), 0.01, told.append, stack)
    told.clear()


told: list[Event] = []


def tried(attempts: Attempts, plan: Plan = LOSSY, **more: Any) -> Any:
    return attempts.try_plan(Proposal(plan, "quantization", "a try"), **more)


def test_a_plan_is_timed_against_the_original_and_scored_on_the_searchs_samples(
    attempts: Attempts, script: Script
) -> None:
    trial = tried(attempts)
    assert (trial.status, trial.part, trial.stage) == (Status.OK, "search", "quantization")
    assert trial.ratio.value == pytest.approx(0.5)
    assert trial.score.value > 0.999 and trial.score.samples == len(SEARCH)
    assert (trial.size, trial.edits, trial.artefact) == (12, EDITS, "artefacts/0123")
    assert trial.reproduce == "run it again" and 0 < trial.seconds < 600
    assert script.asked("score", "candidate") == [list(SEARCH)]
    assert script.asked("score", "baseline") == []
    assert [t.key for t in Ledger(attempts.context.root).trials] == [trial.key]
    assert tried(attempts) is trial, "known: not run again"
    assert len(script.asked("starts", "candidate")) == 1
    assert [e.cached for e in told if isinstance(e, TrialDone)] == [False, True]


def test_a_build_that_takes_longer_than_it_may_fails_and_costs_no_more(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding GPT-2 took 105 s where 70 were left: a search of three minutes took four."""

    def endless(*_: object) -> Files:
        while True:
            time_limit.check_time()

    monkeypatch.setattr(evaluate, "build_all", endless)
    trial = tried(attempts, build_s=0.05)
    assert trial.status is Status.FAILED and 0.05 <= trial.building < 60
    assert trial.why == "ran out of time: 0 s were left to build it"
    assert script.asked("starts", "candidate") == []
    assert tried(attempts, build_s=100.0) is trial, "known"


def test_the_original_runs_on_from_plan_to_plan(attempts: Attempts, script: Script) -> None:
    tried(attempts)
    tried(attempts, replace(LOSSY, backend=Cpu(threads=2)))
    assert len(script.asked("starts", "baseline")) == 1
    assert len(script.asked("ends", "candidate")) == 2
    assert len(script.asked("load", "baseline")) == 1, "it was made ready once"
    attempts.stack.close()
    assert len(script.asked("ends", "baseline")) == 1


def test_an_original_that_is_gone_is_started_again(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(attempts)
    monkeypatch.setattr(Scripted, "alive", False)
    assert tried(attempts, replace(LOSSY, backend=Cpu(threads=2))).status is Status.OK
    assert len(script.asked("starts", "baseline")) == 2


def test_what_has_lost_on_time_is_not_scored_unless_that_is_asked_for(
    attempts: Attempts, script: Script
) -> None:
    script.ratio = 1.5
    trial = tried(attempts)
    assert (trial.status, trial.scores) == (Status.SLOWER, ())
    assert script.asked("score", "candidate") == []
    other = tried(attempts, replace(LOSSY, backend=Cpu(threads=2)), always_score=True)
    assert other.status is Status.SLOWER and other.score.verdict is not Verdict.FAILS


def test_what_may_yet_win_is_scored_and_what_is_only_screened_is_not(
    attempts: Attempts, script: Script
) -> None:
    script.ratio = 1.03
    assert tried(attempts).scores
    plan = replace(LOSSY, backend=Cpu(threads=2))
    script.ratio = 0.5
    screened = attempts.try_plan(Proposal(plan, "runtime", effort="screen", score=False))
    assert (screened.status, screened.scores) == (Status.SCREENED, ())
    assert [len(pair.blocks) for pair in screened.measurement.pairs] == [1]


def test_full_effort_stops_for_no_answer_and_scores_whatever_the_time_was(
    attempts: Attempts, script: Script
) -> None:
    script.ratio, attempts.pair_seconds = 1.5, 60.0
    decided = tried(attempts)
    plan = replace(LOSSY, backend=Cpu(threads=2))
    full = attempts.try_plan(Proposal(plan, "all", effort="full"))
    assert full.status is Status.SLOWER and full.scores
    few, all_of_them = (len(t.measurement.pairs[0].blocks) for t in (decided, full))
    assert (few, all_of_them) == (3, 24)


def test_a_plan_a_thousand_times_slower_is_stopped_at_its_first_warm_up_run(
    attempts: Attempts, script: Script
) -> None:
    script.ratio = 1000.0
    trial = tried(attempts, stop=StoppingRule(0.5))
    assert trial.stopped == trial.why == "stopped early: 2000x slower than the best"
    assert (trial.status, trial.scores, classify_outcome(trial)) == (
        Status.SLOWER,
        (),
        Outcome.SLOWER,
    )
    assert len(script.asked("burst", "candidate")) == 1
    assert script.asked("score", "candidate") == []
    assert tried(attempts, stop=StoppingRule(0.5)) is trial


def test_what_is_stopped_and_faster_than_the_original_is_called_not_scored(
    attempts: Attempts, script: Script
) -> None:
    script.ratio = 0.9
    trial = tried(attempts, stop=StoppingRule(0.5))
    assert trial.stopped.startswith("stopped early: 1.8x slower")
    assert (trial.status, classify_outcome(trial)) == (Status.SCREENED, Outcome.UNSCORED)
    assert len(script.asked("burst", "candidate")) == 2, "a warm-up and a burst"


def test_nothing_is_stopped_where_all_of_it_is_wanted(attempts: Attempts, script: Script) -> None:
    script.ratio = 5.0
    full = attempts.try_plan(Proposal(LOSSY, "all", effort="full"), stop=StoppingRule(0.5))
    plan = replace(LOSSY, backend=Cpu(threads=2))
    history = tried(attempts, plan, always_score=True, stop=StoppingRule(0.5))
    for trial in (full, history):
        assert trial.scores and not trial.stopped


def test_a_trial_takes_all_that_passed_since_it_was_proposed(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 10_000, 7))
    monkeypatch.setattr(evaluate, "perf_counter", lambda: float(next(now)))
    trial = tried(attempts)
    assert (trial.seconds, trial.building) == (21, 7)
    monkeypatch.setattr(evaluate, "build_all", lambda *_: Files({}, (), 12, False, ""))
    assert tried(attempts, replace(LOSSY, backend=Cpu(threads=2))).seconds == 21


def test_a_recipe_that_changes_nothing_is_not_run(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Files({}, (), 12, False, "")
    monkeypatch.setattr(evaluate, "build_all", lambda *_: nothing)
    trial = tried(attempts)
    assert (trial.status, trial.why) == (
        Status.UNCHANGED,
        "its steps change nothing in this model",
    )
    assert attempts.notes == ["int8: its steps change nothing in this model"]
    assert [e.text for e in told if isinstance(e, Note)] == attempts.notes
    assert tried(attempts, replace(LOSSY, backend=Cpu(threads=2))).status is Status.UNCHANGED
    assert attempts.notes == ["int8: its steps change nothing in this model"], "said once"
    assert script.diary == []
    assert tried(attempts, Plan(AS_IS, Cpu(threads=2))).status is Status.OK, "no step, a setting"


def test_a_recipe_that_builds_the_model_of_another_is_not_run_a_second_time(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files({"": Path("toy.onnx")}, EDITS, 12, True, "artefacts/0123", "abcd")
    monkeypatch.setattr(evaluate, "build_all", lambda *_: files)
    twin = replace(
        LOSSY, recipe=Recipe("longer", (*LOSSY.recipe.steps, parse_plugin(Quantizer, "fp16")))
    )
    first = tried(attempts)
    assert (first.status, first.content) == (Status.OK, "abcd")
    script.diary.clear()
    second = tried(attempts, twin)
    assert second.status is Status.UNCHANGED
    assert second.why == "the same model as int8, which was tried"
    assert attempts.notes == [f"longer: {second.why}"] and script.diary == []
    assert tried(attempts, OTHER).status is Status.OK, "a setting of the same steps"
    there = replace(twin, backend=Cpu(threads=3))
    assert tried(attempts, there).status is Status.OK, "the other was not tried there"
    assert tried(attempts, twin, always_score=True).status is Status.UNCHANGED, "recorded so"
    history = replace(twin, backend=OTHER.backend)
    assert tried(attempts, history, always_score=True).status is Status.OK, "all of it is wanted"


def test_a_plan_of_the_search_that_gave_the_same_with_the_same_plugins_stands_for_another(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files({"": Path("toy.onnx")}, EDITS, 12, True, "artefacts/0123", "abcd")
    built = [files]
    monkeypatch.setattr(evaluate, "build_all", lambda *_: built[-1])
    first = tried(attempts)
    steps = LOSSY.recipe.steps
    plans = [
        replace(LOSSY, recipe=Recipe(name, (*steps, parse_plugin(Quantizer, name))))
        for name in ("fp16", "int4-weights", "int8-weights")
    ]
    built.append(replace(files, content="dcba"))
    assert tried(attempts, plans[0]).status is Status.OK, "another content"
    built.append(files)
    attempts.ledger.trials = [replace(first, key="of old")]
    assert tried(attempts, plans[1]).status is Status.OK, "made by plugins that were edited"
    attempts.ledger.trials = [replace(first, part="final")]
    assert tried(attempts, plans[2]).status is Status.OK, "a final that the search did not try"


def test_what_a_build_computes_may_be_unknown(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files({"": Path("toy.onnx")}, EDITS, 12, True, "artefacts/0123")
    monkeypatch.setattr(evaluate, "build_all", lambda *_: files)
    twin = replace(
        LOSSY, recipe=Recipe("longer", (*LOSSY.recipe.steps, parse_plugin(Quantizer, "fp16")))
    )
    assert [tried(attempts, one).status for one in (LOSSY, twin)] == [Status.OK] * 2


OTHER = replace(LOSSY, backend=Cpu(threads=2))


def test_a_screened_plan_is_timed_anew_where_more_is_wanted(
    attempts: Attempts, script: Script
) -> None:
    screened = attempts.try_plan(Proposal(LOSSY, "runtime", effort="screen", score=False))
    assert screened.effort == "screen"
    full = tried(attempts)
    assert (full.effort, full.status) == ("search", Status.OK)
    assert len(script.asked("starts", "candidate")) == 2
    assert attempts.try_plan(Proposal(LOSSY, "runtime", effort="screen")) is full, "it has more"


def test_only_what_was_stopped_is_timed_anew_for_its_score(
    attempts: Attempts, script: Script
) -> None:
    script.ratio = 5.0
    stopped = tried(attempts, stop=StoppingRule(0.5))
    assert stopped.stopped and not stopped.scores
    again = tried(attempts, always_score=True)
    assert again.scores and not again.stopped
    assert tried(attempts, always_score=True) is again
    assert len(script.asked("starts", "candidate")) == 2


def limited(attempts: Attempts, size: int) -> None:
    job = replace(attempts.context.job, wanted=Goal(max_size=size))
    attempts.context = replace(attempts.context, job=job)


def test_what_is_larger_than_asked_is_recorded_and_not_timed(
    attempts: Attempts, script: Script
) -> None:
    limited(attempts, 11)
    trial = tried(attempts)
    assert (trial.status, trial.size, trial.edits) == (Status.TOO_LARGE, 12, EDITS)
    assert trial.why == "12 bytes is above --max-size 11 bytes"
    assert (trial.artefact, trial.stage) == ("artefacts/0123", "quantization")
    assert script.diary == []
    assert Ledger(attempts.context.root).trials == [trial]
    limited(attempts, 12)
    assert tried(attempts, OTHER).status is Status.OK, "to the byte"


def test_a_screen_and_the_history_time_also_what_is_too_large(attempts: Attempts) -> None:
    limited(attempts, 11)
    screened = attempts.try_plan(Proposal(LOSSY, "runtime", effort="screen", score=False))
    assert screened.status is Status.SCREENED
    assert tried(attempts, OTHER, always_score=True).status is Status.OK


def test_the_originals_trial_takes_its_own_time_and_builds_nothing(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(1000.0, 7.0)
    monkeypatch.setattr(evaluate, "perf_counter", lambda: next(now))
    attempts.measure_baseline()
    (trial,) = attempts.ledger.trials
    assert (trial.seconds, trial.building) == (7.0, 0.0)


class TestVersus:
    def test_two_plans_are_timed_side_by_side_and_nothing_is_kept(
        self, attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script.ratios = {LOSSY.backend: 0.5, OTHER.backend: 0.25}
        tried(attempts, replace(LOSSY, backend=Cpu(threads=3)))
        before = list(attempts.ledger.trials)
        script.diary.clear()
        start, started = measure.start_worker, []

        def build(context: Any, plan: Plan, sink: Any) -> Files:
            return Files({"": Path(str(plan.backend))}, (), 12, True, "")

        def noted(context: Any, models: Any, backend: Any, label: str) -> Any:
            started.append((backend, models[""]))
            return start(context, models, backend, label)

        monkeypatch.setattr(evaluate, "build_all", build)
        monkeypatch.setattr(measure, "start_worker", noted)
        found = attempts.time_against(LOSSY, OTHER)
        assert found is not None and found.value == pytest.approx(2.0)
        assert started == [(one.backend, Path(str(one.backend))) for one in (OTHER, LOSSY)]
        assert script.diary[0] == ("baseline", "ends", None)
        assert script.asked("starts", "baseline") == []
        assert len(script.asked("load", "candidate")) == 2, "both are made ready"
        assert script.asked("score", "candidate") == []
        assert attempts.ledger.trials == before
        found = attempts.time_against(OTHER, LOSSY)
        assert found is not None and found.value == pytest.approx(0.5)
        assert script.asked("score", "candidate") == [], "not even the one that may win"

    def test_nothing_is_known_where_one_is_not_built_or_does_not_run(
        self, attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script.fails = "candidate", "load"
        assert attempts.time_against(LOSSY, OTHER) is None

        def refuse(*_: object) -> Files:
            raise OrtuneError("no layer to quantize", fix="-")

        monkeypatch.setattr(evaluate, "build_all", refuse)
        assert attempts.time_against(LOSSY, OTHER) is None


def test_what_cannot_be_built_is_a_trial_that_failed(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Files:
        raise OrtuneError("no layer to quantize", fix="-")

    monkeypatch.setattr(evaluate, "build_all", refuse)
    trial = tried(attempts)
    assert (trial.status, trial.why) == (Status.FAILED, "no layer to quantize")
    assert trial.error.startswith("no layer to quantize")
    assert Ledger(attempts.context.root).trials == [trial]


@pytest.mark.parametrize("do", ["load", "burst", "score"])
def test_a_candidate_that_dies_is_a_trial_that_failed(
    attempts: Attempts, script: Script, do: str
) -> None:
    script.fails = "candidate", do
    trial = tried(attempts)
    assert (trial.status, trial.error) == (Status.FAILED, "the candidate died")
    assert (trial.why, trial.reproduce) == (trial.error, "run it again")
    assert 0 < trial.seconds < 600
    final = attempts.measure_final(trial)
    assert (final.status, final.part, final.error) == (
        Status.FAILED,
        "final",
        "the candidate died",
    )


def test_a_score_that_cannot_be_had_is_a_trial_that_failed(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> tuple[Score, ...]:
        raise BadData("record 3 is 1.5, outside its bounds", fix="-")

    monkeypatch.setattr(measure, "score_plan", refuse)
    trial = tried(attempts)
    final = attempts.measure_final(trial)
    for one in (trial, final):
        assert (one.status, one.why) == (Status.FAILED, "record 3 is 1.5, outside its bounds")
        assert (one.error, one.reproduce) == (one.why, "run it again")
        assert one.size == 12


def test_an_original_that_dies_ends_the_search(attempts: Attempts, script: Script) -> None:
    script.fails = "baseline", "burst"
    with pytest.raises(BaselineFailed):
        tried(attempts)
    with pytest.raises(BaselineFailed):
        attempts.measure_final(replace(studies.baseline(), plan=LOSSY))


class TestFinalist:
    def test_it_is_measured_in_five_fresh_pairs(self, attempts: Attempts, script: Script) -> None:
        trial = tried(attempts)
        script.diary.clear()
        found = attempts.measure_final(trial)
        assert stats.PAIRS == 5
        assert len(found.measurement.pairs) == 5
        assert len(script.asked("starts", "candidate")) == 5
        assert len(script.asked("starts", "baseline")) == 5
        assert len(script.asked("ends", "baseline")) == 6, "the search's own original ends first"
        assert script.diary[0] == ("baseline", "ends", None)
        assert (found.part, found.key, found.stage) == ("final", trial.key, "final")
        assert found.ratio.high < 1 and found.predicted.low < found.ratio.low
        assert attempts.measure_final(trial) is found, "known: not run again"
        assert len(script.asked("starts", "candidate")) == 5
        tried(attempts, replace(LOSSY, backend=Cpu(threads=2)))
        assert len(script.asked("starts", "baseline")) == 6, "a new one for the next plan"

    def test_one_that_waited_is_timed_anew_and_its_scores_stand(
        self, attempts: Attempts, script: Script
    ) -> None:
        """The machine was busy, which is no verdict on the plan; samples are judged once."""
        trial = tried(attempts)
        script.waits = 0.6
        waited = attempts.measure_final(trial)
        assert waited.is_disturbed and waited.score.verdict is Verdict.PROVED
        script.waits = 0.0
        script.diary.clear()
        found = attempts.measure_final(trial)
        assert not found.is_disturbed and found.ratio.high < 1
        assert len(script.asked("starts", "candidate")) == 5
        assert script.asked("score", "candidate") == [] and found.scores == waited.scores
        assert attempts.ledger.find(trial.key, "final") == found

    def test_it_is_scored_once_on_all_samples(self, attempts: Attempts, script: Script) -> None:
        trial = tried(attempts)
        script.diary.clear()
        found = attempts.measure_final(trial)
        assert script.asked("score", "candidate") == [list(SEARCH), list(FINAL)]
        assert found.score.samples == len(SEARCH) + len(FINAL)

    def test_proof_rests_on_held_out_samples_alone(
        self, attempts: Attempts, script: Script
    ) -> None:
        trial = tried(attempts)
        assert trial.score.verdict is Verdict.UNDECIDED, "the search has no sample that proves"
        found = attempts.measure_final(trial)
        assert (found.score.verdict, found.score.proved_on) == (Verdict.PROVED, len(FINAL))

    def test_the_error_is_shared_by_all_that_may_be_judged(self, attempts: Attempts) -> None:
        attempts.context = replace(attempts.context, finalists=3)
        trials = [tried(attempts, replace(LOSSY, backend=Cpu(threads=n))) for n in range(1, 5)]
        scores = [attempts.measure_final(one).score for one in trials]
        assert [score.error for score in scores] == [pytest.approx(0.05 / 3)] * 4
        proved = Verdict.PROVED
        assert [score.verdict is proved for score in scores] == [True, True, True, False]

    def test_one_that_was_not_proved_has_spent_its_share_too(
        self, attempts: Attempts, script: Script
    ) -> None:
        one, two = (tried(attempts, replace(LOSSY, backend=Cpu(threads=n))) for n in (1, 2))
        script.noise = lambda index: 3.0 if index in FINAL[:3] else 0.001
        assert attempts.measure_final(one).score.verdict is Verdict.LIKELY
        script.noise = lambda index: 0.001
        assert attempts.measure_final(two).score.verdict is Verdict.LIKELY

    def test_one_that_died_before_it_was_scored_spends_nothing(
        self, attempts: Attempts, script: Script
    ) -> None:
        one, two = (tried(attempts, replace(LOSSY, backend=Cpu(threads=n))) for n in (1, 2))
        script.fails = "candidate", "load"
        assert attempts.measure_final(one).score is None
        script.fails = "", ""
        assert attempts.measure_final(two).score.verdict is Verdict.PROVED

    def test_a_proof_by_construction_spends_nothing(
        self, attempts: Attempts, script: Script
    ) -> None:
        script.noise = lambda index: 0.0
        exact = attempts.measure_final(tried(attempts, Plan(AS_IS, Cpu(threads=2))))
        assert (exact.score.verdict, exact.score.proved_on) == (Verdict.PROVED, None)
        other = attempts.measure_final(tried(attempts))
        assert (other.score.verdict, other.score.proved_on) == (Verdict.PROVED, len(FINAL))

    def test_held_out_samples_bring_it_down(self, attempts: Attempts, script: Script) -> None:
        script.noise = lambda index: 3.0 if index in FINAL else 0.001
        trial = tried(attempts)
        assert trial.status is Status.OK, "the search does not see them"
        found = attempts.measure_final(trial)
        assert found.status is Status.FAILS and found.score.verdict is Verdict.FAILS
        assert "misses the budget" in found.why

    def test_where_all_parts_share_the_samples_they_count_once(
        self, attempts: Attempts, script: Script
    ) -> None:
        parts = attempts.context.parts
        shared = {**parts, "final": replace(parts["search"], name="final")}
        attempts.context = replace(attempts.context, parts=shared)
        found = attempts.measure_final(tried(attempts))
        assert found.score.samples == len(SEARCH)


def test_the_original_is_timed_against_itself(attempts: Attempts, script: Script) -> None:
    attempts.measure_baseline()
    attempts.measure_baseline()
    (trial,) = attempts.ledger.trials
    assert len(script.asked("starts", "baseline")) == 2, "once, by two processes"
    assert trial.ratio == Interval(1.0, 1.0, 1.0)
    assert trial.score.verdict is Verdict.PROVED and trial.score.value == 1.0
    assert len(trial.measurement.pairs[0].blocks) >= 6
    assert trial.size == attempts.context.models[""].stat().st_size
    assert (trial.why, trial.stage, trial.artefact) == ("the original", "baseline", "")
    assert trial.plan == Plan(AS_IS, Cpu()) and trial.part == "search"
    assert trial.score.base == trial.score.value and trial.score.samples == len(SEARCH)
    assert started() == [(trial.plan, "baseline")]


def started() -> list[tuple[Plan, str]]:
    return [(e.plan, e.stage) for e in told if isinstance(e, TrialStarted)]


def test_a_known_plan_is_announced_by_the_stage_that_asks_for_it(attempts: Attempts) -> None:
    tried(attempts)
    attempts.try_plan(Proposal(LOSSY, "history", "what quantization alone brings"))
    assert started() == [(LOSSY, "quantization"), (LOSSY, "history")]


def test_every_plan_is_announced_before_it_runs(attempts: Attempts) -> None:
    trial = attempts.try_plan(Proposal(LOSSY, "runtime", "a try", neighbour_of="aa11"))
    attempts.measure_final(trial)
    assert started() == [(LOSSY, "runtime"), (LOSSY, "final")]
    kinds = [type(e) for e in told if isinstance(e, (TrialStarted, Timing, TrialDone))]
    assert kinds[0] is TrialStarted and kinds[-1] is TrialDone and Timing in kinds
    assert kinds.count(TrialDone) == 2
    assert (trial.proposed, trial.neighbour_of) == ("a try", "aa11")
    again = attempts.measure_final(trial)
    assert [(e.trial, e.cached) for e in told if isinstance(e, TrialDone)][-1] == (again, True)
    assert started()[2:] == [(LOSSY, "final")]


def test_how_long_each_stage_may_take(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of the search is as long as the search allows, a screened one is a single block."""
    given: list[Effort] = []

    def noted(run: Any) -> Any:
        def timed(*arguments: Any, **more: Any) -> Any:
            given.extend(a for a in arguments if isinstance(a, Effort))
            return run(*arguments, **more)

        return timed

    for module, name in (
        (evaluate, "time_pair"),
        (measure, "time_pair"),
        (measure, "fresh_pairs"),
    ):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    attempts.pair_seconds = 0.02
    attempts.measure_baseline()
    trial = tried(attempts)
    other = replace(LOSSY, backend=Cpu(threads=2))
    attempts.try_plan(Proposal(other, "runtime", effort="screen", score=False))
    attempts.measure_final(trial)
    assert given == [
        Effort(max_blocks=12, seconds=2, decide=False),
        Effort(seconds=0.02, burst=0.1),
        Effort(max_blocks=1, decide=False, burst=0.06),
        claim_effort(0.02),
    ]


def test_a_finalists_pairs_may_get_other_seconds_than_the_usual(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Effort] = []
    fresh = measure.fresh_pairs

    def noted(base: Any, worker: Any, pairs: int, effort: Effort, *more: Any) -> Any:
        given.append(effort)
        return fresh(base, worker, pairs, effort, *more)

    monkeypatch.setattr(measure, "fresh_pairs", noted)
    attempts.measure_final(tried(attempts), 0.003)
    assert given == [replace(claim_effort(attempts.pair_seconds), seconds=0.003)]


FILES = Files({"": Path("toy.onnx")}, EDITS, 12, True, "")


def test_scoring_may_take_what_the_longest_run_of_the_last_block_says(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block(*latency_ns: int) -> Block:
        return Block(Burst((10**6,) * 3, (0.0,) * 3), Burst(latency_ns, (0.0,) * 3))

    blocks = block(50, 60, 70), block(40, 30, 20), block(5, 6, 7), block(10, 90, 80)
    asked: list[int] = []

    def score(
        *_: object, run_ns: int = -1, plans: int | None = 0, keep_as: str = ""
    ) -> tuple[Score, ...]:
        asked.append(run_ns)
        return scored(Verdict.LIKELY)

    monkeypatch.setattr(measure, "score_plan", score)
    final = attempts.measure_final(tried(attempts))
    assert final.scores and asked == [15_000_000] * 2, "half of the original's 30 ms"
    monkeypatch.setattr(measure, "time_pair", lambda *_: Pair(blocks))
    tried(attempts, OTHER)
    assert asked[2:] == [90]


def test_a_finalist_whose_scores_are_known_is_not_scored_again(
    attempts: Attempts, script: Script
) -> None:
    trial = replace(studies.baseline(), plan=LOSSY)
    measure_again = partial(
        measure.measure_finalist,
        *(attempts.context, trial, FILES),
        effort=Effort(seconds=0.01),
        sink=ignore_event,
        learnt=stats.NOTHING,
        is_enough=lambda ratio, accepted: True,
    )
    known = scored(Verdict.PROVED)
    assert measure_again(former_scores=known).scores == known
    assert script.asked("score", "candidate") == []
    found = measure_again()
    assert found.score is not None and found.score.verdict is Verdict.LIKELY
    proved = measure_again(provable=True)
    assert proved.score is not None and proved.score.verdict is Verdict.PROVED


@pytest.mark.parametrize("fails", ["", "load"])
def test_a_measured_plan_says_what_it_took(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    script.fails = "candidate" * bool(fails), fails
    now = count(10_000.0, 7.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    base: Any = Scripted(script, "baseline", Cpu())
    part, effort = attempts.context.parts["search"], Effort(max_blocks=1)
    trial = measure.measure_plan(
        attempts.context, "k", LOSSY, FILES, part, base, effort=effort, sink=ignore_event
    )
    assert (trial.status is Status.FAILED) is bool(fails)
    assert 7.0 <= trial.seconds < 700.0


def test_a_finalist_is_judged_by_what_the_rest_of_the_run_learnt(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts.measure_baseline()
    one, two = (tried(attempts, replace(LOSSY, backend=Cpu(threads=n))) for n in (1, 2))
    asked: list[str] = []
    learnt = measure.pool_variance

    def noted(trials: Any, but: str = "") -> stats.PooledVariance:
        asked.append(but)
        return learnt(trials, but)

    monkeypatch.setattr(measure, "pool_variance", noted)
    attempts.measure_final(one)
    found = attempts.measure_final(two)
    assert asked == [one.key, two.key]
    rest = learnt(attempts.ledger.trials, but=two.key)
    assert rest.df == 1 + stats.PAIRS - 1
    assert found.ratio == stats.claim_ratio(found.measurement.pairs, rest)


def scored(verdict: Verdict) -> tuple[Score, ...]:
    return (Score("cosine", 0.9, 1.0, 0.8, 1.0, 32, verdict),)


@pytest.mark.parametrize(
    ("ratio", "scores", "status"),
    [
        (Interval(0.5, 0.4, 0.6), scored(Verdict.PROVED), Status.OK),
        (Interval(0.5, 0.4, 0.6), scored(Verdict.LIKELY), Status.OK),
        (Interval(0.5, 0.4, 0.6), scored(Verdict.FAILS), Status.FAILS),
        (Interval(1.5, 1.4, 1.6), scored(Verdict.FAILS), Status.FAILS),
        (Interval(1.5, 1.4, 1.6), scored(Verdict.PROVED), Status.SLOWER),
        (Interval(1.5, 1.4, 1.6), (), Status.SLOWER),
        (Interval(1.1, 1.0, 1.2), scored(Verdict.PROVED), Status.OK),
        (Interval(0.5, 0.4, 0.6), (), Status.SCREENED),
    ],
)
def test_accuracy_is_judged_before_time(
    attempts: Attempts, ratio: Interval, scores: tuple[Score, ...], status: Status
) -> None:
    assert decide_status(attempts.context.budget, "latency", ratio, scores)[0] is status


def test_a_group_that_does_not_follow_is_named(attempts: Attempts) -> None:
    limit = attempts.context.budget.limit
    score = replace(scored(Verdict.FAILS)[0], value=limit, base=limit, basis="a class is dead")
    found = decide_status(attempts.context.budget, "latency", Interval(0.5, 0.4, 0.6), (score,))
    assert found == (Status.FAILS, "a class is dead")


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Interval(0.5, 0.4, 0.6), "2.00x as fast"),
        (Interval(0.95, 0.9, 1.0), "within noise"),
        (Interval(0.95, 0.9, 1.1), "within noise"),
        (Interval(1.5, 1.4, 1.6), "slower: 1.50 times"),
    ],
)
def test_an_interval_that_holds_one_is_no_difference(
    attempts: Attempts, ratio: Interval, says: str
) -> None:
    budget = attempts.context.budget
    assert says in decide_status(budget, "latency", ratio, scored(Verdict.PROVED))[1]


def test_a_survey_stands_in_the_journal_of_the_run(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SurveyRequest(SURVEY.plan, "it fails the budget")
    monkeypatch.setattr(
        evaluate, "survey_plan", lambda context, request, seconds, *_, **more: SURVEY
    )
    attempts.survey_regions(asked, 5.0)
    assert read_journal(attempts.context.root) == attempts.journal.surveys == [SURVEY]


def test_a_measurement_of_a_like_machine_is_taken_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SharedCache(str(tmp_path / "cache"), "samples", told.append)

    def attempt(name: str, **changes: Any) -> tuple[Trial, int]:
        script = Script()
        (tmp_path / name).mkdir()
        context = replace(scripted(tmp_path / name, monkeypatch, script), shared=cache)
        context = replace(context, job=replace(context.job, **changes))
        with ExitStack() as stack:
            trial = tried(Attempts(context, 0.01, told.append, stack))
        assert [t.key for t in Ledger(tmp_path / name).trials] == [trial.key]
        return trial, len(script.asked("starts", "candidate"))

    measured, starts = attempt("first")
    assert starts == 1 and evaluate.SHARED not in measured.why
    taken, starts = attempt("second")
    assert starts == 0 and evaluate.SHARED in taken.why
    assert (taken.ratio, taken.key) == (measured.ratio, measured.key)
    assert taken.score is not None and taken.score.value > 0.999
    other, starts = attempt("third", machine={"cpu": "another"})
    assert starts == 1 and evaluate.SHARED not in other.why
    forged = replace(measured, plan=replace(LOSSY, backend=Cpu(threads=7)))
    cache.store_record("trials", [measured.key], codec.encode(forged))
    told.clear()
    _, starts = attempt("fourth")
    assert starts == 1
    assert any("of another plan" in event.text for event in told if isinstance(event, Note))
