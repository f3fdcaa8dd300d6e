"""A whole search on scripted workers: what is confirmed, learnt, concluded and said."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.search.experiment.scripted import FINAL, LOSSY, SEARCH, Script
from tests.unit.search.given import EXACT, PLANS, Clock, Given, backends, ratios, seeing, told

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal, Outcome
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, TrialDone, TrialStarted, Unconfirmed
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.study import Study
from ortune.core.trial import Interval, Plan, Proposal, Status, Trial, UntriedPlan, Verdict
from ortune.measurement.timing import stats
from ortune.search import loop
from ortune.search.experiment import evaluate, measure
from ortune.search.loop import list_closing_trials
from ortune.search.policy import LeftOut, View


@dataclass(frozen=True)
class Around(Given):
    """Proposes each plan as a neighbour of the first, and ends for lack of time."""

    def next(self, view: View) -> Proposal | None:
        found = super().next(view)
        first = [t for t in view.trials if t.plan == self.plans[0]]
        return replace(found, neighbour_of=first[0].key) if found and first else found

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut(notes=(), late=1, plans=1)


@dataclass(frozen=True)
class OfSettings(Around):
    """Proposes plans of the first one's recipe as its neighbours, the others as plans."""

    def next(self, view: View) -> Proposal | None:
        found = super().next(view)
        alike = found is not None and found.plan.recipe == self.plans[0].recipe
        return found if alike or found is None else replace(found, neighbour_of="")


@dataclass(frozen=True)
class Screened(Given):
    """Proposes a block of each plan."""

    def next(self, view: View) -> Proposal | None:
        found = super().next(view)
        return replace(found, effort="screen") if found else None


@dataclass(frozen=True)
class Stubborn(Given):
    """Proposes one plan again and again."""

    def next(self, view: View) -> Proposal | None:
        return Proposal(self.plans[0], "test", "given")


KNOWN = {"by_operator": {"Conv": 1.0}}


@dataclass(frozen=True)
class Warm(Given):
    """Proposes nothing unless it is told what the run knew before its first trial."""

    def next(self, view: View) -> Proposal | None:
        return super().next(view) if view.by_operator == KNOWN["by_operator"] else None


def test_the_policy_sees_what_was_known_before_the_first_trial(run: Callable[..., Study]) -> None:
    study = run(Script(ratios=ratios(0.8)), PLANS[:1], Warm, KNOWN)
    assert backends(study, "search") == [1]


def test_the_three_fastest_are_measured_again_and_the_best_of_them_is_handed_out(
    run: Callable[..., Study],
) -> None:
    study = run(Script(ratios=ratios(0.8, 0.5, 0.52, 0.51, 1.2)))
    assert backends(study, "search") == [1, 2, 3, 4, 5]
    assert backends(study, "final") == [2, 4, 3]
    assert study.best.plan == PLANS[1] and study.best.part == "final"
    assert study.finished == "done" and not study.too_noisy
    assert study.counts[Outcome.UNSCORED] == 1 and study.counts[Outcome.UNTRIED] == 3
    stopped = study.trials[5]
    assert stopped.stopped == "stopped early: 2.4x slower than the best"
    assert (stopped.why, stopped.scores) == (stopped.stopped, ())
    assert study.notes == ("three more plans are there",)
    assert study.best.score is not None and study.best.score.verdict is Verdict.PROVED
    assert [step.name for step in study.history] == ["baseline", "quantization", "runtime"]


def test_where_nothing_is_faster_the_original_stays(run: Callable[..., Study]) -> None:
    study = run(Script(ratio=1.02))
    assert study.best == study.baseline and backends(study, "final") == []
    assert [step.name for step in study.history] == ["baseline"]


def test_all_finalists_falling_leaves_the_original(run: Callable[..., Study]) -> None:
    study = run(Script(noise=lambda at: 3.0 if at in FINAL else 0.001))
    assert len(backends(study, "final")) == 4, "one more that lost nothing in the search"
    assert {t.status for t in study.final} == {Status.FAILS}
    assert study.best == study.baseline


def test_the_order_of_finalists_is_that_of_the_search(run: Callable[..., Study]) -> None:
    """What held-out samples tell of one must not choose the next that they judge."""
    script = Script(
        ratios=ratios(0.5, 0.51, 0.52, 0.53, 0.9),
        noise=lambda at: 3.0 if at in FINAL else 0.001,
        louder={PLANS[2].backend: 0.99, PLANS[3].backend: 0.0001},
    )
    study = run(script)
    assert backends(study, "final") == [1, 2, 3, 4], "and one more that lost nothing"
    assert study.best.plan == PLANS[3]


def test_what_may_be_accepted_is_re_measured_before_what_is_faster_and_may_not(
    run: Callable[..., Study],
) -> None:
    script = Script(
        ratios=ratios(0.5, 0.8, 0.9),
        noise=lambda at: 3.0 if at in (*SEARCH[:5], *FINAL[:5]) else 0.001,
        louder={plan.backend: 0.0001 for plan in PLANS[1:3]},
    )
    study = run(script, [PLANS[1], PLANS[0]])
    assert backends(study, "final") == [2, 1], "one of 20 samples is broken by the first"
    assert study.best.plan == PLANS[1]


def test_no_more_accuracy_is_read_than_leaves_what_may_be_accepted(
    run: Callable[..., Study],
) -> None:
    """Of 200 samples, three broken ones leave room for two plans that are looked at."""
    other = Recipe("int8 by tensor", (parse_plugin(Quantizer, "int8-dynamic(per-channel=false)"),))
    plans = [PLANS[0], PLANS[1], replace(PLANS[2], recipe=other), replace(PLANS[3], recipe=other)]
    script = Script(
        ratios=ratios(0.5, 0.45, 0.4, 0.35),
        noise=lambda at: 3.0 if at in SEARCH[:3] else 0.001,
        louder={plans[1].backend: 1.5, plans[2].backend: 2.0},
    )
    study = run(script, plans)
    read = [t.plan for t in study.trials[1:] if t.part == "search" and t.scores]
    assert read[:2] == plans[:2] and not {*plans[2:]} & {*read}
    assert study.best.plan == plans[1], "the fastest of those that were read"
    assert any("was not read" in note for note in study.notes)


def test_every_finalist_is_judged_by_all_that_the_run_learnt(run: Callable[..., Study]) -> None:
    study = run(Script(ratios=ratios(0.5, 0.51, 0.52, 0.9, 0.95)))
    for trial in study.final:
        assert trial.measurement is not None
        learnt = measure.pool_variance(study.trials, but=trial.key)
        others = [t for t in study.final if t.key != trial.key and t.measurement is not None]
        counts = [len(t.measurement.pairs) - 1 for t in others if t.measurement is not None]
        assert len(counts) == 2
        assert learnt.df == 1 + sum(counts), "the A/A pair and the two others"
        assert trial.ratio == stats.claim_ratio(trial.measurement.pairs, learnt)
    lines = Path(study.root, "ledger.jsonl").read_text().splitlines()
    keys = [found["key"] for found in map(json.loads, lines) if found["part"] == "final"]
    first, second, last = (trial.key for trial in study.final)
    assert keys == [first, second, last, first, second], "the earlier are concluded again, once"


def test_time_that_is_left_lets_all_finalists_be_measured(run: Callable[..., Study]) -> None:
    clock = Clock()
    script = Script(ratios=ratios(0.5, 0.51, 0.52, 0.9, 0.95), passes=lambda: clock.turn(15.0))
    study = run(script, clock=clock)
    assert backends(study, "final") == [1]
    assert study.finished == "time"
    assert "out of time: 2 finalists not re-measured" in study.notes
    assert [t.plan for t in study.unconfirmed] == []


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        (5, ""),
        (9, "3 % needs 9 pairs (90 s)"),
        (10, "3 % needs more than 90 s per finalist"),
        (None, "3 % needs more than 90 s per finalist"),
    ],
)
def test_what_would_be_found_is_named_up_to_ninety_seconds(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch, needed: int | None, says: str
) -> None:
    monkeypatch.setattr(stats, "pairs_for", lambda learnt: needed)
    monkeypatch.setattr(stats, "minimum_detectable_effect", lambda learnt: 0.05)
    conclude = measure.judge_trial

    def level(context: Any, trial: Trial, *more: Any) -> Trial:
        pairs = trial.measurement.pairs if trial.measurement is not None else ()
        judged = conclude(context, trial, *more)
        return replace(judged, ratio=Interval(0.9, 0.8, 1.1), seconds=10 * len(pairs))

    monkeypatch.setattr(measure, "judge_trial", level)
    study = run(Script(ratios=ratios(0.5)), PLANS[:1])
    (said,) = [note for note in study.notes if "3 %" in note] or [""]
    assert says in said and bool(says) is bool(said)
    assert ("find one of 5 %" in said) is ("cannot" in said)


def test_plans_left_for_lack_of_time_are_told_once(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Given, "explain_untried", lambda self, view: LeftOut(late=7, plans=7))
    study = run(Script())
    assert [e.text for e in told if isinstance(e, Note)] == [
        "no time for more plans: 7 plans not tried"
    ]
    assert study.notes == () and study.counts[Outcome.UNTRIED] == 7
    assert study.finished == "time"


class TestWanted:
    """The original's file has its real size, every built one 12 bytes."""

    def test_the_smallest_that_is_not_slower_is_handed_out(
        self, run: Callable[..., Study]
    ) -> None:
        script = Script(ratios=ratios(1.0, 1.0, 1.0, 1.2, 0.999))
        assert run(script).best.part == "search", "the original: nothing is faster"
        study = run(script, goal=Goal("size"))
        assert backends(study, "final") == [5, 1], "the two fastest of those of one size"
        assert study.best.part == "final" and study.best.size == 12
        assert study.job.wanted == Goal("size")

    def test_a_plan_above_a_bound_is_no_finalist(self, run: Callable[..., Study]) -> None:
        script = Script(ratio=0.5)
        study = run(script, goal=Goal(max_size=11))
        assert study.final == () and study.best == study.baseline
        assert study.counts[Outcome.TOO_LARGE] == len(PLANS)
        assert {t.why for t in study.trials[1:]} == {"12 bytes is above --max-size 11 bytes"}
        assert script.asked("load", "candidate") == [], "not timed"
        assert not study.job.wanted.keeps_bounds(study.best)

    def test_one_that_keeps_it_to_the_byte_is_one(self, run: Callable[..., Study]) -> None:
        assert run(Script(ratio=0.5), goal=Goal(max_size=12)).best.size == 12

    def test_one_that_is_screened_is_timed_all_the_same(self, run: Callable[..., Study]) -> None:
        study = run(Script(ratio=0.5), PLANS[:1], Screened, goal=Goal(max_size=11))
        assert study.trials[1].ratio is not None and study.final == ()

    def test_nor_does_it_end_the_search_at_the_target(self, run: Callable[..., Study]) -> None:
        study = run(Script(ratio=0.3), target_speedup=2.0, goal=Goal(max_size=11))
        assert study.finished == "done" and study.final == ()

    def test_a_setting_that_saves_is_a_finalist_though_it_gains_no_time(
        self, run: Callable[..., Study]
    ) -> None:
        script = Script(ratios=ratios(0.5, 0.6), sizes={PLANS[1].backend: 10})
        study = run(script, PLANS[:2], Around, goal=Goal("size"))
        assert backends(study, "final") == [2] and study.best.size == 10

    def test_policies_are_told(self, run: Callable[..., Study]) -> None:
        seen: list[View] = []

        class Asked(Given):
            def next(self, view: View) -> Proposal | None:
                seen.append(view)
                return super().next(view)

        run(Script(), PLANS[:1], Asked, goal=Goal("memory"))
        assert {view.goal for view in seen} == {Goal("memory")}


class TestTarget:
    def test_a_proved_plan_ends_the_search(self, run: Callable[..., Study]) -> None:
        study = run(Script(ratios=ratios(0.8, 0.4, 0.3)), target_speedup=2.0)
        assert study.finished == "target"
        assert backends(study, "search")[:2] == [1, 2] and backends(study, "final") == [2]

    def test_a_plan_that_only_seems_to_reach_it_does_not(self, run: Callable[..., Study]) -> None:
        study = run(Script(ratio=0.4995), target_speedup=2.0)
        assert study.finished == "done"
        assert len(study.final) == 3, "no more are judged than share the error"

    def test_a_run_that_reached_it_ends_at_once_when_it_is_asked_for_again(
        self, run: Callable[..., Study]
    ) -> None:
        script = Script(ratios=ratios(0.4999, 0.4999, 0.3, 0.2))
        first = run(script, target_speedup=2.0)
        assert first.finished == "target" and backends(first, "final") == [1, 2, 3]
        again = run(script, target_speedup=2.0)
        assert again.finished == "target"
        assert backends(again, "search") == [1, 2, 3], "nothing more is tried"

    def test_finalists_that_were_measured_on_the_way_are_not_called_left_out(
        self, run: Callable[..., Study]
    ) -> None:
        clock = Clock()
        clock.now = 200.0
        script = Script(ratios=ratios(0.4999, 0.4999, 0.4999, 0.9, 0.95))
        study = run(script, target_speedup=2.0, clock=clock)
        assert backends(study, "final") == [1, 2, 3]
        assert study.finished == "done"
        assert not [note for note in study.notes if "out of time" in note]

    def test_one_that_is_not_proved_does_not(self, run: Callable[..., Study]) -> None:
        script = Script(ratio=0.3, noise=lambda at: 3.0 if at == 150 else 0.001)
        study = run(script, target_speedup=2.0)
        assert study.finished == "done" and study.final


def test_the_machine_is_judged_by_what_was_measured(run: Callable[..., Study]) -> None:
    study = run(Script())
    assert study.noise["original timed against itself (A/A ratio)"].startswith("1.000 [")
    assert study.noise["runs that waited for a CPU"] == "0.0 %"
    assert float(study.noise["smallest error of a speed-up here"].split()[0]) < 10
    assert study.noise["measured for"]


def test_a_strict_search_hands_out_only_what_is_proved(run: Callable[..., Study]) -> None:
    script = Script(ratio=0.5, noise=lambda at: 3.0 if at in (150, 151) else 0.001)
    study = run(script, strict=True)
    assert study.strict and study.final and study.best == study.baseline


def test_unless_it_is_strict_a_search_hands_out_what_is_likely(run: Callable[..., Study]) -> None:
    study = run(Script(ratio=0.5, noise=lambda at: 3.0 if at in (150, 151) else 0.001))
    assert not study.strict and study.best in study.final
    assert study.best.score is not None and study.best.score.verdict is Verdict.LIKELY


def test_ctrl_c_keeps_what_was_found(run: Callable[..., Study]) -> None:
    calls = []

    def noise(at: int) -> float:
        calls.append(at)
        if len(calls) > 1000:
            raise KeyboardInterrupt
        return 0.001

    study = run(Script(noise=noise))
    assert study.finished == "interrupted" and len(study.trials) > 1
    assert study.counts[Outcome.UNTRIED] == 0, "what the policy had left is not known"
    assert any(isinstance(e, Note) and e.warning for e in told)
    assert "smallest error of a speed-up here" in study.noise


def test_ctrl_c_among_the_finalists_concludes_those_that_were_measured(
    run: Callable[..., Study],
) -> None:
    def noise(at: int) -> float:
        if sum(isinstance(e, TrialStarted) and e.stage == "final" for e in told) > 2:
            raise KeyboardInterrupt
        return 0.001

    study = run(Script(ratios=ratios(0.5, 0.51, 0.52, 0.9, 0.95), noise=noise))
    assert study.finished == "interrupted" and backends(study, "final") == [1, 2]
    assert study.counts[Outcome.UNTRIED] == 3
    lines = map(json.loads, Path(study.root, "ledger.jsonl").read_text().splitlines())
    keys = [found["key"] for found in lines if found["part"] == "final"]
    assert keys == [*(trial.key for trial in study.final), study.final[0].key]


@pytest.mark.parametrize(
    ("seconds", "pair"), [(10.0, 1.0), (90.0, 2.0), (180.0, 4.0), (1000.0, 4.0)]
)
def test_a_pair_gets_four_seconds_of_three_minutes(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch, seconds: float, pair: float
) -> None:
    given: list[float] = []
    time_pair = measure.time_pair

    def noted(base: Any, worker: Any, effort: Any, *more: Any) -> Any:
        given.append(effort.seconds)
        return time_pair(base, worker, effort, *more)

    monkeypatch.setattr(measure, "time_pair", noted)
    run(Script(ratio=1.2), PLANS[:1], seconds=seconds)
    assert given == [pytest.approx(pair)]


def test_an_original_that_stops_running_ends_the_search_in_two_lines(
    run: Callable[..., Study],
) -> None:
    with pytest.raises(OrtuneError, match="the original stopped running: the baseline died") as e:
        run(Script(fails=("baseline", "burst")))
    assert "run it again" in e.value.fix


def test_the_first_plan_that_keeps_the_budget_is_shown_at_once_and_no_other(
    run: Callable[..., Study],
) -> None:
    run(Script(ratios=ratios(1.2, 0.8, 0.5)), PLANS[:3])
    (shown,) = [e.trial for e in told if isinstance(e, Unconfirmed)]
    assert shown.plan == PLANS[1] and shown.part == "search"
    order = [type(e) for e in told if isinstance(e, TrialDone | Unconfirmed)]
    assert order.index(Unconfirmed) == 3, "after the original and two plans"


def test_the_history_is_left_out_and_said_so_where_no_time_is_left(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    script = Script(passes=lambda: clock.turn(30.0))
    study = run(script, [Plan(BOTH, PLANS[0].backend)], clock=clock)
    assert [step.name for step in study.history] == ["baseline", "runtime"]
    assert "out of time: the speed-up by graph alone was not measured" in study.notes
    assert "out of time: the speed-up by quantization alone was not measured" in study.notes
    assert study.best.part == "final", "what is best is confirmed in any case"


def test_set_up_that_takes_long_is_said_and_does_not_count(run: Callable[..., Study]) -> None:
    clock = Clock()
    clock.now = 26.0
    seen: list[float] = []
    study = run(Script(), [], clock=clock, policy=seeing(seen))
    first = "reading the data and scoring the original took 26 s; "
    assert study.notes[0] == first + "--time counts from here"
    assert seen == [100.0]
    clock.now, told[:] = 24.0, []


def test_a_run_that_was_killed_goes_on_with_the_time_that_it_had_left(
    run: Callable[..., Study],
) -> None:
    first = run(Script(), PLANS[:2])
    seen: list[float] = []
    again = run(Script(), [], policy=seeing(seen))
    finals = list_closing_trials(again.trials)
    assert {trial.stage for trial in finals} == {"final", "history"}
    spent = sum(trial.seconds for trial in again.trials if trial not in finals)
    Path(first.root, "ending.json").unlink()
    run(Script(), [], policy=seeing(seen))
    assert seen[0] == 100.0, "one that had ended gets all of it again"
    assert seen[-1] == pytest.approx(100.0 - spent), "as before its finals"


def test_plans_that_were_left_out_are_listed_with_their_reasons(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    untried = tuple(UntriedPlan(str(plan), "time was up") for plan in PLANS * 50)
    left = LeftOut(late=250, plans=250, untried=untried)
    monkeypatch.setattr(Given, "explain_untried", lambda self, view: left)
    study = run(Script(ratio=1.2), PLANS[:1])
    assert study.counts[Outcome.UNTRIED] == 250
    assert len(study.ending.left_out) == 200
    assert study.ending.left_out[0] == UntriedPlan(str(PLANS[0]), "time was up")


def test_no_plan_is_begun_in_the_time_of_the_finalists(run: Callable[..., Study]) -> None:
    clock = Clock()
    script = Script(ratios=ratios(0.5, 0.51, 0.52, 0.9, 0.95), passes=lambda: clock.turn(40.0))
    study = run(script, seconds=160.0, clock=clock)
    assert backends(study, "search") == [1, 2, 3, 4]
    assert study.finished == "time"


def test_ctrl_c_before_anything_is_known_is_passed_on(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(Script())


def test_a_setting_that_gains_nothing_over_the_plan_around_it_is_no_finalist(
    run: Callable[..., Study],
) -> None:
    study = run(Script(ratios=ratios(0.5, 0.498, 0.49)), PLANS[:3], Around)
    assert backends(study, "final") == [3, 1]
    assert study.finished == "time" and study.counts[Outcome.UNTRIED] == 1


def test_a_setting_that_gains_nothing_does_not_put_another_recipe_before_the_fastest(
    run: Callable[..., Study],
) -> None:
    other = Plan(BOTH, PLANS[2].backend)
    study = run(Script(ratios=ratios(0.5, 0.498, 0.51)), [*PLANS[:2], other], OfSettings)
    assert backends(study, "final") == [1, 3]


def test_a_policy_that_repeats_itself_is_a_fault(run: Callable[..., Study]) -> None:
    with pytest.raises(AssertionError, match="a second time"):
        run(Script(ratio=1.2), PLANS[:1], Stubborn)


BOTH = Recipe("both", (*EXACT.steps, *LOSSY.recipe.steps))
BASE = Cpu()


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        (Plan(EXACT, BASE), ["baseline", "graph"]),
        (Plan(EXACT, PLANS[0].backend), ["baseline", "graph", "runtime"]),
        (Plan(LOSSY.recipe, BASE), ["baseline", "quantization"]),
        (Plan(BOTH, BASE), ["baseline", "graph", "quantization"]),
        (Plan(BOTH, PLANS[0].backend), ["baseline", "graph", "quantization", "runtime"]),
    ],
)
def test_the_history_says_what_each_kind_of_change_brought(
    run: Callable[..., Study], plan: Plan, kinds: list[str]
) -> None:
    study = run(Script(), [plan])
    assert [step.name for step in study.history] == kinds
    assert study.history[0].key == study.baseline.key
    assert study.history[-1].key == study.best.key
    stages = [t.stage for t in study.trials if t.stage == "history"]
    assert len(stages) == len(kinds) - 2
    assert all(t.scores for t in study.trials)


def test_a_part_of_the_winner_is_scored_in_the_history_also_where_it_is_slower(
    run: Callable[..., Study],
) -> None:
    study = run(Script(ratios={BASE: 1.5}), [Plan(BOTH, PLANS[0].backend)])
    parts = [t for t in study.trials if t.stage == "history"]
    assert len(parts) == 2 and all(t.scores and t.ratio and t.ratio.low > 1 for t in parts)


def test_where_no_finalist_is_proved_the_fastest_exact_plan_is_one_too(
    run: Callable[..., Study],
) -> None:
    exact = [Plan(EXACT, Cpu(threads=n)) for n in (6, 7)]
    script = Script(
        ratios=ratios(0.3, 0.31, 0.32) | {exact[0].backend: 0.8, exact[1].backend: 0.7},
        noise=lambda at: 3.0 if at in (150, 151) else 0.0,
    )
    study = run(script, [*PLANS[:3], *exact], strict=True)
    assert backends(study, "final") == [1, 2, 3, 7]
    unsure = run(script, [*PLANS[:3], *exact], strict=False)
    assert unsure.best.plan == PLANS[0]


@pytest.mark.parametrize("other", [(), (Plan(EXACT, Cpu(threads=6)),)])
def test_a_finalist_that_is_not_accepted_leaves_its_time_to_a_plan_that_may_win(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch, other: tuple[Plan, ...]
) -> None:
    clock, answers = Clock(), []
    unclear, measure_finalist = Interval(0.7, 0.4, 1.1), measure.measure_finalist

    def ask(*args: Any, is_enough: Callable[[Interval, bool], bool], **keywords: Any) -> Trial:
        for clock.now in (80.0, 40.0):  # 20 s and 60 s are left
            answers.append([is_enough(unclear, accepted) for accepted in (True, False)])
        return measure_finalist(*args, **keywords)

    monkeypatch.setattr(measure, "measure_finalist", ask)
    monkeypatch.setattr(loop.Reserve, "final_s", lambda *_: 30.0)
    script = Script(ratios=ratios(0.3) | {plan.backend: 0.7 for plan in other})
    run(script, [*other, PLANS[0]], clock=clock)
    assert answers == [[False, bool(other)], [False, False]]


def test_the_first_finalist_may_overrun_by_what_a_final_takes_if_it_has_no_interval(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, answers = Clock(), []
    bounds, measure_finalist = (0.7, 0.4, 1.1), measure.measure_finalist

    def ask(*args: Any, is_enough: Callable[[Interval, bool], bool], **keywords: Any) -> Trial:
        for clock.now in (105.0, 129.0, 131.0):
            answers.append([is_enough(Interval(*bounds), accepted) for accepted in (True, False)])
        clock.now = 40.0
        return measure_finalist(*args, **keywords)

    monkeypatch.setattr(measure, "measure_finalist", ask)
    monkeypatch.setattr(loop.Reserve, "final_s", lambda *_: 30.0)
    run(Script(ratios=ratios(0.3)), PLANS[:1], clock=clock)
    assert answers == [[False, True], [False, True], [True, True]]


def test_a_run_that_has_ended_counts_its_new_set_up_alone(run: Callable[..., Study]) -> None:
    clock = Clock()
    run(Script(passes=lambda: clock.turn(2.0)), PLANS[:2], clock=clock)
    clock.now = 30.0
    seen: list[float] = []
    study = run(Script(), [], clock=clock, policy=seeing(seen))
    assert "took 30 s" in study.notes[0]
    assert seen[0] == 100.0


def test_a_part_of_the_winner_that_was_stopped_is_timed_anew_for_the_history(
    run: Callable[..., Study],
) -> None:
    plans = [Plan(BOTH, PLANS[0].backend), Plan(BOTH, BASE)]
    study = run(Script(ratios={BASE: 3.0}), plans)
    (part,) = [t for t in study.trials if t.plan == plans[1]]
    assert part.scores and not part.stopped and part.stage == "history"


def test_a_part_that_was_only_screened_is_not_measured_where_no_time_is_left(
    run: Callable[..., Study],
) -> None:
    clock = Clock()
    script = Script(ratios={BASE: 0.9}, passes=lambda: clock.turn(17.0))
    plans = [Plan(EXACT, BASE), Plan(EXACT, PLANS[0].backend)]
    study = run(script, plans, Screened, clock=clock)
    assert "out of time: the speed-up by graph alone was not measured" in study.notes


def test_at_the_end_the_winner_is_asked_what_fixed_shapes_would_bring(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), []
    monkeypatch.setattr(
        loop.fixed_shapes,
        "note_fixed_shapes",
        lambda _, space, best, left: asked.append((best, left)),
    )
    study = run(Script(ratios=ratios(0.5), passes=lambda: clock.turn(0.5)), PLANS[:1], clock=clock)
    ((best, left),) = asked
    assert best is not None and best.key == study.best.key
    assert 0 < left == 100.0 - clock.now
