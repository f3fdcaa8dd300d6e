"""What a descent keeps: processes are fakes whose times follow a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ortune_toys.backends.scripted import Scripted
from tests.unit.studies import FACTS

from ortune.analysis.tuning.tune import Answers, Descent
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.measurement.timing import pairs
from ortune.search.recipe.space import SearchTarget


class Process:
    """A worker that takes `ns` a run."""

    def __init__(self, ns: float) -> None:
        self.ns = round(ns)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take_turns_with(self, other: Any) -> None:
        """What is loaded here is small."""

    def ask(self, do: str, **_: Any) -> dict[str, Any]:
        return {"load_ns": 1, "first_ns": 1, "peak_rss": 1, "placement": {}, "cpu_ns": 1}


def scripted_pair(one: Process, two: Process, *_: object) -> Pair:
    bursts = (Burst((side.ns,) * 4, (0.0,) * 4) for side in (one, two))
    return Pair((Block(*bursts),) * 6)


def descended(start: Callable[[Backend], Process], monkeypatch: pytest.MonkeyPatch) -> Descent:
    monkeypatch.setattr(pairs, "time_pair", scripted_pair)
    target = SearchTarget(Scripted(), Capabilities(), frozenset({"threads"}))
    starts: Any = start
    made = Descent(target, FACTS, starts, lambda worker, b: Answers(True, "", 99, 0), 60)
    made.run()
    return made


def test_a_quicker_setting_is_kept_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain that fresh pairs do not show is none: the start is the answer."""

    def start(backend: Any) -> Process:
        return Process(1e6 * (backend.slow if helps else 1))

    helps = True
    found = descended(start, monkeypatch)
    assert found.best == Scripted(slow=0.9 * 0.9)
    ratio, cpu = found.confirm_best()
    assert ratio.high < 1
    assert cpu is not None
    assert found.best == Scripted(slow=0.9 * 0.9)
    helps = False
    assert found.confirm_best() == (Interval(1, 1, 1), None)
    assert found.best == Scripted()


def test_one_slow_process_of_the_best_makes_no_setting_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No setting does anything here, but the first process of all is 8 % slower than others."""
    started: list[Process] = []

    def start(backend: Backend) -> Process:
        started.append(Process(1e6 if started else 1.08e6))
        return started[-1]

    found = descended(start, monkeypatch)
    assert found.best == Scripted()
    assert [one.kept for one in found.attempts] == [False, False]
