"""Several workers that act as one: loaded in turn, timed over the same stretch of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from statistics import fmean, median
from typing import Any, Self

from ortune.measurement.process import Worker

_LEAD_NS = 20_000_000
"""From the question to the beginning of what counts: all are at work by then."""
_FEWEST = 4
"""Runs that a session has time for, at least."""
_IN_TURN = ("load", "first")
_LONGEST = ("load_ns", "first_ns")


class Team:
    """Live workers that answer the commands of one; a context manager.

    A burst is a stretch of time in which every session of every worker runs without a pause. Runs
    that lie wholly inside count, so that each had the company of all others. An entry is the time
    per inference of all together: one over the sum of the sessions' rates.
    """

    def __init__(self, starts: Sequence[Callable[[], Worker]]) -> None:
        """Start the processes.

        Args:
            starts: Each starts a worker that knows the task ``window``.
        """
        self._run_ns = self._entry_ns = 0
        self._details: list[Mapping[str, Any]] = []
        with ExitStack() as stack:
            self._workers = [stack.enter_context(start()) for start in starts]
            self._pool = stack.enter_context(ThreadPoolExecutor(len(starts)))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Put a command to all workers and return one answer: sums, and the longest of times.

        Raises:
            WorkerFailed: One of them failed.
        """
        if do == "burst":
            return self._burst(**arguments)
        if do == "details":
            found, self._details = self._details, []
            return {"details": found}
        if do in _IN_TURN:
            answers = [worker.ask(do, **arguments) for worker in self._workers]
        else:
            answers = self._at_once(do, arguments)
        answer = {key: _joined(key, [one[key] for one in answers]) for key in answers[0]}
        if do == "first":
            self._run_ns = self._entry_ns = max(1, answer["first_ns"])
        return answer

    def _at_once(self, do: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self._pool.map(lambda worker: worker.ask(do, **arguments), self._workers))

    def _burst(self, at: int, runs: int, each: int = 1, drop: int = 0) -> dict[str, Any]:
        """Run for as long as `runs` entries of `each` runs take; all entries are equal."""
        length = max(runs * each * self._entry_ns, _FEWEST * self._run_ns)
        begin = time.monotonic_ns() + _LEAD_NS + (2 * self._run_ns if drop else 0)
        window = {"at": at, "begin_ns": begin, "end_ns": begin + length}
        found = self._at_once("window", window)
        rates = [rate for one in found for rate in one["rates"]]
        taken = [ns for one in found for ns in one["runs_ns"]]
        self._entry_ns, self._run_ns = max(1, round(1 / sum(rates))), round(median(taken))
        self._details.append({"sessions": len(rates), "runs_ns": taken})
        waited = [one["waited"] for one in found]
        share = round(fmean(waited), 4) if min(waited) >= 0 else -1.0
        return {
            "latency_ns": [self._entry_ns] * runs,
            "waited": [share] * runs,
            "spent_ns": length,
            "alike": True,
        }


def _joined(key: str, values: Sequence[Any]) -> Any:
    """Return one value for those of all workers; None where one has none."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        return values[0]
    if isinstance(values[0], str):
        return min(values)  # "cold" where one of them built an engine
    if isinstance(values[0], list):
        return list(chain.from_iterable(values))
    return max(values) if key in _LONGEST else sum(values)
