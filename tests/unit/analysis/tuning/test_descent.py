"""What a descent keeps: processes are fakes whose times follow a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ortune_toys.backends.scripted import Scripted
from tests.unit.studies import FACTS

from ortune.analysis.tuning.descent import Answers, Descent, Tools
from ortune.analysis.tuning.tune import judged
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.measurement.timing import pairs
from ortune.recipe.space import Target


class Process:
    """A worker that takes `ns` a run."""

    def __init__(self, ns: float) -> None:
        self.ns = round(ns)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, do: str, **_: Any) -> dict[str, Any]:
        return {"load_ns": 1, "first_ns": 1, "peak_rss": 1, "placement": {}}


def scripted_pair(one: Process, two: Process, *_: object) -> Pair:
    bursts = (Burst((side.ns,) * 4, (0.0,) * 4) for side in (one, two))
    return Pair((Block(*bursts),) * 6)


def descended(start: Callable[[Backend], Process], monkeypatch: pytest.MonkeyPatch) -> Descent:
    monkeypatch.setattr(pairs, "time_pair", scripted_pair)
    tools: Any = Tools(start, lambda worker, b: Answers(True, "", 99, 0), lambda tried: None)
    made = Descent(Target(Scripted(), Capabilities(), frozenset({"threads"})), FACTS, tools, 60)
    made.run()
    return made


def test_a_quicker_setting_is_kept_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(backend: Any) -> Process:
        return Process(1e6 * backend.slow)

    found = descended(start, monkeypatch)
    assert found.best == Scripted(slow=0.9 * 0.9)


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


def test_a_gain_that_fresh_pairs_do_not_show_is_none() -> None:
    found: Any = Descent(Target(Scripted(), Capabilities()), FACTS, None, 60)  # type: ignore[arg-type]
    found.best = Scripted(slow=0.5)
    for ratio, kept in ((Interval(0.9, 0.85, 0.95), True), (Interval(0.98, 0.9, 1.1), False)):
        found.judged = lambda ratio=ratio: (ratio, Interval(1.2, 1.1, 1.3))
        told, cpu = judged(found)
        assert (found.best == Scripted(slow=0.5)) is kept
        assert (told == ratio) is kept and (cpu is not None) is kept
    assert told == Interval(1, 1, 1)
