"""A whole search on scripted workers: what time counts, and what follows from what is left."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.search.experiment.scripted import FINAL, Script
from tests.unit.search.given import EXACT, PLANS, Clock, Given, backends, ratios, seeing, told

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal
from ortune.core.event import Note, TimeLeft, Unconfirmed
from ortune.core.study import Study
from ortune.core.trial import Plan
from ortune.search import loop
from ortune.search.experiment.evaluate import Attempts
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.policy import LeftOut, View
from ortune.search.reserve import Reserve

SLOW = ratios(1.2, 1.2, 1.2, 1.2, 1.2)
NEAR = ratios(0.5, 0.501, 0.502, 0.9, 0.95)


@dataclass
class Regions:
    """Surveys as a test gives them; it counts the trials that mixtures were looked for in."""

    seconds: float = 0.0
    possible: bool = True
    surveys: Sequence[Any] = ()
    surveyed: list[tuple[SurveyRequest, View]] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)

    def measure_regions(self, request: SurveyRequest, view: View) -> None:
        self.surveyed.append((request, view))
        self.surveys = (*self.surveys, request.plan)

    def record_mixtures(self, view: View) -> None:
        self.settled.append(len(view.trials))


def rewritten(root: str, seconds: float, parts: Sequence[str] = ("search", "final")) -> None:
    """Leave a run as if it had been killed, after trials that took so long each."""
    Path(root, "ending.json").unlink(missing_ok=True)
    ledger = Path(root, "ledger.jsonl")
    found = [json.loads(line) for line in ledger.read_text().splitlines()]
    kept = [one | {"seconds": seconds} for one in found if one["part"] in parts]
    ledger.write_text("".join(json.dumps(one) + "\n" for one in kept))


def left_told() -> list[float]:
    return [e.seconds for e in told if isinstance(e, TimeLeft)]


def late(clock: Clock, now: float) -> Any:
    """Return a policy after whose last plan it is so late."""

    @dataclass(frozen=True)
    class Late(Given):
        def explain_untried(self, view: View) -> LeftOut:
            clock.now = now
            return LeftOut()

    return Late


class TestFormerTime:
    @pytest.fixture
    def killed(self, run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> Study:
        study = run(Script(ratios=SLOW), PLANS[:3])
        rewritten(study.root, 3.0)
        monkeypatch.setattr(loop, "RegionSearch", lambda *_: Regions(seconds=7.0))
        told.clear()
        return study

    def test_trials_and_surveys_count(self, run: Callable[..., Study], killed: Study) -> None:
        seen: list[float] = []
        run(Script(), [], policy=seeing(seen))
        assert seen[0] == 100.0 - 4 * 3.0 - 7.0
        assert left_told()[0] == seen[0]

    def test_they_are_no_set_up(self, run: Callable[..., Study], killed: Study) -> None:
        clock, seen = Clock(), []  # type: ignore[var-annotated]
        clock.now = 23.0
        study = run(Script(), [], clock=clock, policy=seeing(seen))
        expected = "reading the data and scoring the original took 26 s; "
        assert study.notes[0].startswith(expected), "23 s before, and 3 of its trial"
        assert left_told() == [100.0 - 4 * 3.0 - 7.0 - 23.0, 100.0 - 3 * 3.0 - 7.0]
        assert seen[0] == left_told()[-1]

    def test_finals_of_a_killed_run_say_nothing_of_the_time_to_keep_back(
        self, run: Callable[..., Study]
    ) -> None:
        study = run(Script(ratios=NEAR))
        assert len(study.final) == 3
        seen: list[View] = []
        rewritten(study.root, 0.5)
        run(Script(ratios=NEAR), [], policy=seeing(seen, lambda view: view))
        with_finals = seen[0]
        rewritten(study.root, 0.5, ["search"])
        seen.clear()
        run(Script(ratios=NEAR), [], policy=seeing(seen, lambda view: view))
        assert seen[0].remaining_s == with_finals.remaining_s
        assert seen[0].kept_back == with_finals.kept_back > 0


def test_set_up_of_a_quarter_counts(run: Callable[..., Study]) -> None:
    clock, seen = Clock(), []  # type: ignore[var-annotated]
    clock.now = 25.0
    assert not [
        n for n in run(Script(), [], clock=clock, policy=seeing(seen)).notes if "took" in n
    ]
    assert seen[0] == 75.0


class TestTrying:
    """Every plan takes 40 of 160 s."""

    @pytest.fixture
    def tried(
        self, run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., Study]:
        def tried(kept_back: float, plans: Sequence[Plan] = PLANS, **more: Any) -> Study:
            monkeypatch.setattr(Reserve, "compute_reserve_s", lambda *_: kept_back)
            clock = Clock()
            script = Script(ratios=SLOW, passes=lambda: clock.turn(40.0))
            return run(script, plans, seconds=160.0, clock=clock, **more)

        return tried

    @pytest.mark.parametrize(
        ("kept_back", "backed"), [(79.0, [1, 2, 3]), (80.0, [1, 2]), (81.0, [1, 2]), (999.0, [1])]
    )
    def test_no_plan_but_the_first_is_begun_in_time_that_is_kept_back(
        self, tried: Callable[..., Study], kept_back: float, backed: list[int]
    ) -> None:
        study = tried(kept_back)
        assert backends(study, "search") == backed
        assert study.finished == "time"
        assert "no time for more plans" in [e.text for e in told if isinstance(e, Note)]

    def test_time_is_not_up_where_nothing_more_was_to_be_tried(
        self, tried: Callable[..., Study]
    ) -> None:
        assert tried(80.0, PLANS[:2]).finished == "done"

    def test_a_plan_is_built_within_what_is_spare(
        self, tried: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[float] = []
        one = Attempts.try_plan

        def noted(self: Any, *args: Any, build_s: float = 0.0, **more: Any) -> Any:
            given.append(build_s)
            return one(self, *args, build_s=build_s, **more)

        monkeypatch.setattr(Attempts, "try_plan", noted)
        tried(60.0, PLANS[:2])
        assert given == [160.0 - 60.0 + 8.0, 120.0 - 60.0 + 8.0], "and a twentieth of all"


def test_a_survey_is_made_and_seen_before_what_follows(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[View] = []

    @dataclass(frozen=True)
    class Surveying(Given):
        def next(self, view: View) -> Any:
            seen.append(view)
            return super().next(view) if view.surveys else SurveyRequest(PLANS[0], "a test")

    regions = Regions()
    monkeypatch.setattr(loop, "RegionSearch", lambda *_: regions)
    study = run(Script(ratios=SLOW), PLANS[:2], Surveying)
    assert regions.surveyed == [(SurveyRequest(PLANS[0], "a test"), seen[0])]
    assert seen[1].surveys == (PLANS[0],) and seen[1].by_region
    assert regions.settled == [1, 2, 3], "what a killed run left, and after every trial"
    assert backends(study, "search") == [1, 2]


def test_what_is_shown_first_is_smaller_than_the_original(run: Callable[..., Study]) -> None:
    run(Script(ratios=ratios(1.2, 1.0)), PLANS[:2], goal=Goal("size"))
    (shown,) = [e.trial for e in told if isinstance(e, Unconfirmed)]
    assert shown.plan == PLANS[1]


class TestFinals:
    """A final takes 10 s, and what follows it 5."""

    @pytest.fixture(autouse=True)
    def costs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Reserve, "final_s", lambda *_: 10.0)
        monkeypatch.setattr(Reserve, "closing_s", 5.0)

    @pytest.mark.parametrize(("now", "measured"), [(85.0, [1, 2, 3]), (85.1, [1]), (92.0, [1])])
    def test_those_that_fit_are_measured_and_the_first_in_any_case(
        self, run: Callable[..., Study], now: float, measured: list[int]
    ) -> None:
        clock = Clock()
        study = run(Script(ratios=NEAR), clock=clock, policy=late(clock, now))
        assert backends(study, "final") == measured
        skipped = "out of time: 2 finalists not re-measured"
        assert (skipped in study.notes) is (len(measured) == 1)
        assert study.finished == ("done" if len(measured) == 3 else "time")

    @pytest.mark.parametrize(
        ("fourth", "finished", "skipped"),
        [(0.3, "time", ["out of time: 1 finalist not re-measured"]), (0.9, "done", [])],
    )
    def test_where_some_were_measured_on_the_way_to_a_target_only_the_others_are_late(
        self, run: Callable[..., Study], fourth: float, finished: str, skipped: list[str]
    ) -> None:
        clock = Clock()
        script = Script(ratios=ratios(0.4999, 0.4999, 0.4999, fourth, 0.95))
        study = run(script, target_speedup=2.0, clock=clock, policy=late(clock, 200.0))
        assert backends(study, "final") == [1, 2, 3]
        assert study.finished == finished
        assert [note for note in study.notes if "not re-measured" in note] == skipped

    def test_an_exact_plan_is_one_more_where_none_won_alone(
        self, run: Callable[..., Study]
    ) -> None:
        plans = [*PLANS[:2], *(Plan(EXACT, Cpu(threads=n)) for n in (6, 7))]
        script = Script(ratios=NEAR | {plans[2].backend: 0.502, plans[3].backend: 0.503})
        assert backends(run(script, plans), "final") == [1, 6, 2]

    def test_and_it_is_one_that_was_not_measured(self, run: Callable[..., Study]) -> None:
        plans = [*(Plan(EXACT, Cpu(threads=n)) for n in (7, 6)), *PLANS[:2]]
        script = Script(
            ratios=ratios(0.31, 0.32) | {plans[1].backend: 0.3, plans[0].backend: 0.33},
            noise=lambda at: 3.0 if at in FINAL else 0.0,
        )
        assert backends(run(script, plans), "final") == [6, 1, 2, 7]


def test_what_wins_is_what_is_wanted(
    run: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        loop.fixed_shapes,
        "note_fixed_shapes",
        lambda _, space, best, left: asked.append(best.plan),
    )
    script = Script(
        ratios=ratios(0.3, 0.4),
        sizes={PLANS[1].backend: 10},
        noise=lambda at: 3.0 if at == 150 else 0.001,
    )
    study = run(script, PLANS[:2], goal=Goal("size"), target_speedup=2.0)
    assert backends(study, "final") == [1, 2], "on the way, neither proved"
    assert asked == [study.best.plan] == [PLANS[1]]
