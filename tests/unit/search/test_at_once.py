"""Plans timed at once on two devices, by scripted workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.search.experiment.scripted import Script
from tests.unit.search.given import PLANS, Given, backends, ratios, told

from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import BadSettings, Interruption
from ortune.core.event import Note
from ortune.core.step import Recipe
from ortune.core.study import Study
from ortune.core.trial import Interval, Plan, Proposal, Status, Trial, count_spent_s
from ortune.measurement.devices import LEASES, Device, LinkLost, find_lease, open_device
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.search.adaptive import expect_outcomes
from ortune.search.experiment import at_once, evaluate, measure
from ortune.search.experiment.at_once import leave_out_unlike
from ortune.search.policy import View

A, B = Device(HERE, "a"), Device("second", "b")
Run = Callable[..., Study]


@dataclass
class Timings:
    """What was timed on which device: its name, threads of the plan, begin and end.

    Attributes:
        broken: Names of devices whose connection breaks in every timing.
        before: Called with the name and the plan before it is timed.
    """

    spans: list[tuple[str, int, float, float]] = field(default_factory=list)
    broken: tuple[str, ...] = ()
    before: Callable[[str, Plan], None] = lambda name, plan: time.sleep(0.1)

    def list_spans(self, name: str) -> list[tuple[float, float]]:
        return sorted(span[2:] for span in self.spans if span[0] == name)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Timings:
    """Return what writes down what is timed where."""
    timings, measure_plan = Timings(), measure.measure_plan

    def measure_slowly(context: Any, key: str, plan: Any, *arguments: Any, **more: Any) -> Trial:
        lease, began = find_lease(HERE), time.monotonic()
        assert lease is not None
        name = lease.device.name
        timings.before(name, plan)
        if name in timings.broken:
            failure = Failure("the cable is out", "", interruption=Interruption.LINK)
            raise WorkerFailed(failure, None)
        trial = measure_plan(context, key, plan, *arguments, **more)
        timings.spans.append((name, plan.backend.threads, began, time.monotonic()))
        return trial

    monkeypatch.setattr(measure, "measure_plan", measure_slowly)
    return timings


@pytest.fixture
def two() -> Iterator[None]:
    with open_device(A, B):
        yield


@pytest.mark.usefixtures("two")
def test_two_devices_time_two_plans_at_once_and_each_device_one(
    run: Run, timings: Timings
) -> None:
    study = run(Script(ratios=ratios(0.8, 0.5, 0.52, 0.9, 0.7)))
    assert study.best.plan == PLANS[1], "that of one device"
    assert sorted(backends(study, "search")) == [1, 2, 3, 4, 5]
    tried = [trial for trial in study.trials if trial.stage == "test"]
    assert {trial.device for trial in tried} == {HERE, "second"}
    timings.spans = timings.spans[: len(tried)]
    first, second = timings.list_spans(HERE), timings.list_spans("second")
    for row in (first, second):
        assert all(before[1] <= after[0] for before, after in pairwise(row))
    assert any(a[0] < b[1] and b[0] < a[1] for a in first for b in second)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("name", [HERE, "second"])
def test_a_device_that_is_lost_leaves_its_plans_to_the_other(
    run: Run, timings: Timings, name: str
) -> None:
    timings.broken = (name,)
    study = run(Script(ratios=ratios(0.8, 0.5, 0.52, 0.9, 0.7)))
    assert study.best.plan == PLANS[1]
    assert sorted(backends(study, "search")) == [1, 2, 3, 4, 5], "each once"
    assert not any(trial.interruption for trial in study.trials)
    assert {span[0] for span in timings.spans} == {HERE, "second"} - {name}
    assert [lease.device.name for lease in LEASES.get()] == list({HERE, "second"} - {name})
    said = [note for note in study.notes if "broke" in note]
    assert said[0] == f"{name}: {Interruption.LINK}"
    assert said[1] == f"{name}: {Interruption.LINK} again, and it is left out"


@pytest.mark.usefixtures("two")
def test_devices_that_are_all_lost_end_the_search_as_one_does(run: Run, timings: Timings) -> None:
    timings.broken = (HERE, "second")
    with pytest.raises(Exception, match="the original stopped running: the cable is out"):
        run(Script(), plans=PLANS[:1])


def test_an_interrupt_keeps_what_has_come_in_and_gives_the_rest_back(
    run: Run, timings: Timings, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang_first(name: str, plan: Plan) -> None:
        if plan == PLANS[0] and not released.is_set():
            assert released.wait(20)
            with pytest.raises(LinkLost):
                LEASES.get()[0].hold()
            failure = Failure("the device was released", "", interruption=Interruption.LINK)
            raise WorkerFailed(failure, None)

    def interrupt(*arguments: Any, **more: Any) -> None:
        while len(timings.spans) < 1:
            time.sleep(0.01)
        time.sleep(0.1)  # its future is done
        raise KeyboardInterrupt

    timings.before = hang_first
    monkeypatch.setattr(at_once, "wait", interrupt)
    with open_device(A, B):
        for lease in LEASES.get():
            release = lease.release
            lease.release = lambda release=release: (release(), released.set())  # type: ignore[method-assign]
        study = run(Script(ratios=ratios(0.8, 0.5)))
    assert study.finished == "interrupted"
    assert backends(study, "search") == [2], "one was timed, and the other says nothing"
    monkeypatch.undo()


def test_what_ends_a_search_gives_back_what_is_timed(
    run: Run, timings: Timings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builds: list[Plan] = []

    def fill(context: Any, plan: Plan, sink: Any) -> Any:
        builds.append(plan)
        if plan == PLANS[1]:
            while not timings.spans:
                time.sleep(0.01)
            time.sleep(0.1)
            raise OSError(5, "Input/output error")
        return build(context, plan, sink)

    class Filling(Given):
        def next(self, view: View) -> Proposal | None:
            nonlocal build
            if evaluate.build_all is not fill:
                build = evaluate.build_all
                monkeypatch.setattr(evaluate, "build_all", fill)
            return super().next(view)

    build: Any = None
    with open_device(A, B), suppress(OSError):
        run(Script(ratios=ratios(0.8)), policy=Filling)
    ledger = (tmp_path / "ledger.jsonl").read_text(encoding="utf-8")
    assert builds == PLANS[:2]
    assert len(ledger.splitlines()) == 2, "the original, and the plan that was timed meanwhile"


@pytest.mark.usefixtures("two")
def test_plans_that_build_to_the_same_model_count_once(
    run: Run, timings: Timings, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = replace(PLANS[0], recipe=Recipe("twin", PLANS[0].recipe.steps * 2))

    class Alike(Given):
        def next(self, view: View) -> Proposal | None:
            build = evaluate.build_all
            if build.__name__ == "build":
                monkeypatch.setattr(
                    evaluate,
                    "build_all",
                    lambda *arguments: replace(build(*arguments), content="same"),
                )
            return super().next(view)

    study = run(Script(), plans=[PLANS[0], twin, PLANS[1]], policy=Alike)
    assert f"twin: the same model as {PLANS[0].recipe.name}, which was tried" in study.notes
    assert sorted(backends(study, "search")) == [1, 2]
    assert [span[1] for span in timings.spans[:2]] == [1, 2]


@pytest.mark.parametrize(("devices", "unloads"), [([], 5), ([A], 5), ([A, B], 0)])
def test_one_device_gives_its_memory_back_before_a_build(
    run: Run, monkeypatch: pytest.MonkeyPatch, devices: list[Device], unloads: int
) -> None:
    from tests.unit.search.experiment.scripted import Scripted

    unloaded: list[str] = []
    monkeypatch.setattr(Scripted, "unload", lambda self: unloaded.append(self.side))
    with open_device(*devices):
        run(Script(ratios=ratios(0.8, 0.5, 0.52, 0.9, 0.7)), policy=Given)
    assert unloaded[:5] == ["baseline"] * unloads


def test_a_plan_that_is_timed_is_read_as_if_it_had_come_out(run: Run) -> None:
    seen: list[tuple[View, View]] = []

    class Looking(Given):
        def next(self, view: View) -> Proposal | None:
            if len(view.trials) == 2:
                pending = replace(
                    Trial("key", PLANS[1], "search", Status.FAILED),
                    stage="runtime",
                    neighbour_of=view.trials[1].key,
                    building=7.0,
                )
                proposal = Proposal(PLANS[1], "runtime", "", "screen")
                seen.append((view, expect_outcomes(view, [(proposal, pending)])))
            return super().next(view)

    run(Script(), policy=Looking, plans=PLANS[:1])
    view, expected = seen[0]
    outcome = expected.trials[-1]
    assert (outcome.key, outcome.stage, outcome.neighbour_of) == (
        "key",
        "runtime",
        view.trials[1].key,
    )
    assert outcome.status is Status.SCREENED and outcome.effort == "screen"
    assert isinstance(outcome.ratio, Interval) and 0 < outcome.ratio.value < 1
    assert outcome.seconds == pytest.approx(7 + view.trials[1].seconds - view.trials[1].building)
    assert expected.looked_at == view.looked_at + 1


@pytest.mark.parametrize(
    ("trials", "seconds"),
    [
        ([("", 3, 0), ("", 4, 2)], 7),
        ([("", 3, 0), ("a", 4, 1), ("b", 6, 1), ("a", 5, 1)], 3 + 9),
        ([("a", 4, 4), ("b", 6, 6), ("a", 5, 5)], 15),
    ],
)
def test_seconds_of_devices_that_worked_at_once_count_once(
    trials: list[tuple[str, float, float]], seconds: float
) -> None:
    blank = Trial("", PLANS[0], "search", Status.OK)
    spent = [
        replace(blank, device=device, seconds=took, building=built)
        for device, took, built in trials
    ]
    assert count_spent_s(spent) == seconds


def test_devices_of_another_kind_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = {"a": "x", "b": "x", "c": "y"}

    def query(backend: Any, environment: str) -> Capabilities:
        lease = find_lease(environment)
        assert lease is not None
        if lease.device.name == "d":
            raise BadSettings("no answer", fix="wait")
        return Capabilities(machine={"cpu": offers[lease.device.name]})

    told.clear()
    monkeypatch.setattr(at_once, "query_capabilities", query)
    with open_device(*(Device(name, name) for name in "abcd")) as environment:
        leave_out_unlike(PLANS[0].backend, environment, told.append)
        assert [lease.device.name for lease in LEASES.get()] == ["a", "b"]
    texts = [event.text for event in told if isinstance(event, Note)]
    assert texts == [
        "c is left out: its CPU or packages are not those of a",
        "d is left out: no answer",
    ]
