"""From a plan to a trial, with scripted workers: what is timed, scored and said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.experiment.scripted import FINAL, LOSSY, SEARCH, Script, scripted

from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.event import Event, TrialDone
from ortune.core.step import AS_IS
from ortune.core.trial import Interval, Plan, Proposal, Score, Status, Verdict
from ortune.experiment import evaluate, measure
from ortune.experiment.build import Files
from ortune.experiment.evaluate import Attempts
from ortune.experiment.ledger import Ledger
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed


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
    return attempts.one(Proposal(plan, "quantization", "a try"), **more)


def test_a_plan_is_timed_against_the_original_and_scored_on_the_searchs_samples(
    attempts: Attempts, script: Script
) -> None:
    trial = tried(attempts)
    assert (trial.status, trial.part, trial.stage) == (Status.OK, "search", "quantization")
    assert trial.ratio.value == pytest.approx(0.5)
    assert trial.score.value > 0.999 and trial.score.samples == len(SEARCH)
    assert script.asked("score", "candidate") == [list(SEARCH)]
    assert script.asked("score", "baseline") == []
    assert [t.key for t in Ledger(attempts.context.root).trials] == [trial.key]
    assert tried(attempts) is trial, "known: not run again"
    assert len(script.asked("starts", "candidate")) == 1
    assert [e.cached for e in told if isinstance(e, TrialDone)] == [False, True]


def test_the_original_runs_on_from_plan_to_plan(attempts: Attempts, script: Script) -> None:
    tried(attempts)
    tried(attempts, replace(LOSSY, backend=Cpu(threads=2)))
    assert len(script.asked("starts", "baseline")) == 1
    assert len(script.asked("ends", "candidate")) == 2
    attempts.stack.close()
    assert len(script.asked("ends", "baseline")) == 1


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
    screened = attempts.one(Proposal(plan, "runtime", effort="screen", score=False))
    assert (screened.status, screened.scores) == (Status.SCREENED, ())
    assert [len(pair.blocks) for pair in screened.measurement.pairs] == [1]


def test_full_effort_stops_for_no_answer_and_scores_whatever_the_time_was(
    attempts: Attempts, script: Script
) -> None:
    script.ratio, attempts.pair_seconds = 1.5, 60.0
    decided = tried(attempts)
    plan = replace(LOSSY, backend=Cpu(threads=2))
    full = attempts.one(Proposal(plan, "all", effort="full"))
    assert full.status is Status.SLOWER and full.scores
    few, all_of_them = (len(t.measurement.pairs[0].blocks) for t in (decided, full))
    assert (few, all_of_them) == (3, 24)


def test_a_recipe_that_changes_nothing_is_not_run(
    attempts: Attempts, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Files({}, (), 12, False, "")
    monkeypatch.setattr(evaluate, "build_all", lambda *_: nothing)
    assert tried(attempts).status is Status.UNCHANGED
    assert tried(attempts, replace(LOSSY, backend=Cpu(threads=2))).status is Status.UNCHANGED
    assert attempts.notes == ["int8: nothing to change, not tried"], "said once"
    assert script.diary == []
    assert tried(attempts, Plan(AS_IS, Cpu(threads=2))).status is Status.OK, "no step, a setting"


def test_what_cannot_be_built_is_a_trial_that_failed(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Files:
        raise OrtuneError("no layer to quantize", fix="-")

    monkeypatch.setattr(evaluate, "build_all", refuse)
    trial = tried(attempts)
    assert (trial.status, trial.why) == (Status.FAILED, "no layer to quantize")
    assert Ledger(attempts.context.root).trials == [trial]


@pytest.mark.parametrize("do", ["load", "burst", "score"])
def test_a_candidate_that_dies_is_a_trial_that_failed(
    attempts: Attempts, script: Script, do: str
) -> None:
    script.fails = "candidate", do
    trial = tried(attempts)
    assert (trial.status, trial.error) == (Status.FAILED, "the candidate died")
    assert trial.reproduce == "run it again"
    final = attempts.final(trial, 1, 1)
    assert (final.status, final.part, final.error) == (
        Status.FAILED,
        "final",
        "the candidate died",
    )


def test_an_original_that_dies_ends_the_search(attempts: Attempts, script: Script) -> None:
    script.fails = "baseline", "burst"
    with pytest.raises(BaselineFailed):
        tried(attempts)
    with pytest.raises(BaselineFailed):
        attempts.final(replace(studies.baseline(), plan=LOSSY), 1, 1)


class TestFinalist:
    def test_it_is_measured_in_five_fresh_pairs(self, attempts: Attempts, script: Script) -> None:
        trial = tried(attempts)
        script.diary.clear()
        found = attempts.final(trial, 1, 1)
        assert stats.PAIRS == 5
        assert len(found.measurement.pairs) == 5
        assert len(script.asked("starts", "candidate")) == 5
        assert len(script.asked("starts", "baseline")) == 5
        assert len(script.asked("ends", "baseline")) == 6, "the search's own original ends first"
        assert script.diary[0] == ("baseline", "ends", None)
        assert (found.part, found.key, found.stage) == ("final", trial.key, "final")
        assert found.ratio.high < 1 and found.predicted.low < found.ratio.low
        assert attempts.final(trial, 1, 1) is found, "known: not run again"
        assert len(script.asked("starts", "candidate")) == 5

    def test_it_is_scored_once_on_all_samples(self, attempts: Attempts, script: Script) -> None:
        trial = tried(attempts)
        script.diary.clear()
        found = attempts.final(trial, 1, 1)
        assert script.asked("score", "candidate") == [list(SEARCH), list(FINAL)]
        assert found.score.samples == len(SEARCH) + len(FINAL)

    def test_proof_rests_on_held_out_samples_alone(
        self, attempts: Attempts, script: Script
    ) -> None:
        trial = tried(attempts)
        assert trial.score.verdict is Verdict.LIKELY, "the search has no sample that proves"
        found = attempts.final(trial, 1, 1)
        assert (found.score.verdict, found.score.proved_on) == (Verdict.PROVED, len(FINAL))

    def test_the_error_is_shared_by_all_that_may_be_judged(self, attempts: Attempts) -> None:
        attempts.context = replace(attempts.context, finalists=3)
        trials = [tried(attempts, replace(LOSSY, backend=Cpu(threads=n))) for n in range(1, 5)]
        scores = [attempts.final(one, 1, 3).score for one in trials]
        assert [score.error for score in scores] == [pytest.approx(0.05 / 3)] * 4
        proved = Verdict.PROVED
        assert [score.verdict is proved for score in scores] == [True, True, True, False]

    def test_held_out_samples_bring_it_down(self, attempts: Attempts, script: Script) -> None:
        script.noise = lambda index: 3.0 if index in FINAL else 0.001
        trial = tried(attempts)
        assert trial.status is Status.OK, "the search does not see them"
        found = attempts.final(trial, 1, 1)
        assert found.status is Status.FAILS and found.score.verdict is Verdict.FAILS
        assert "leaves the budget" in found.why

    def test_where_all_parts_share_the_samples_they_count_once(
        self, attempts: Attempts, script: Script
    ) -> None:
        parts = attempts.context.parts
        shared = {**parts, "final": replace(parts["search"], name="final")}
        attempts.context = replace(attempts.context, parts=shared)
        found = attempts.final(tried(attempts), 1, 1)
        assert found.score.samples == len(SEARCH)


def test_the_original_is_timed_against_itself(attempts: Attempts, script: Script) -> None:
    attempts.baseline()
    attempts.baseline()
    (trial,) = attempts.ledger.trials
    assert len(script.asked("starts", "baseline")) == 2, "once, by two processes"
    assert trial.ratio == Interval(1.0, 1.0, 1.0)
    assert trial.score.verdict is Verdict.PROVED and trial.score.value == 1.0
    assert len(trial.measurement.pairs[0].blocks) >= 6
    assert trial.size == attempts.context.models[""].stat().st_size


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
    assert measure.conclude(attempts.context, ratio, scores)[0] is status


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Interval(0.5, 0.4, 0.6), "2.00x as fast"),
        (Interval(0.95, 0.9, 1.0), "beyond the noise"),
        (Interval(0.95, 0.9, 1.1), "beyond the noise"),
        (Interval(1.5, 1.4, 1.6), "slower: 1.50 times"),
    ],
)
def test_an_interval_that_holds_one_is_no_difference(
    attempts: Attempts, ratio: Interval, says: str
) -> None:
    assert says in measure.conclude(attempts.context, ratio, scored(Verdict.PROVED))[1]
