"""Lanes side by side: a thread each, and what several workloads measure around them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, TypeVar

from ortune.core.workload import Lane, Span

_BURST_S, _SHORTEST_BURST_S = 1.0, 0.05
_SHORT_SEARCH_S = 60.0


def arrival_times(
    rate: float, count: int, seed: Sequence[int], *, poisson: bool = True
) -> NDArray[np.float64]:
    """Return the intended starts of calls, nanoseconds from the beginning of their schedule.

    Args:
        rate: Calls a second.
        count: How many.
        seed: Equal seeds give equal schedules.
        poisson: Independent callers, whose gaps are exponential; else the gaps are equal.
    """
    import numpy as np

    gaps = np.random.default_rng(seed).exponential(size=count) if poisson else np.ones(count)
    return np.cumsum(gaps) * 1e9 / rate


def burst_seconds(seconds: float) -> float:
    """Return how long a burst by the clock takes: as long as was asked for, else a second."""
    return seconds or _BURST_S


def fit_burst(seconds: float, search_s: float) -> float:
    """Return the seconds to ask of a burst: less than by itself where the search is short.

    A finalist has five pairs of processes with eight bursts each and more, 40 s by themselves.
    """
    if seconds or search_s >= _SHORT_SEARCH_S:
        return seconds
    return max(_SHORTEST_BURST_S, _BURST_S * search_s / _SHORT_SEARCH_S)


_ENOUGH = 10


def percentile(ns: Sequence[int], p: float) -> float | None:
    """Return a percentile; None for a tail that fewer than 10 samples lie in, or of nothing."""
    import numpy as np

    beyond = round(len(ns) * min(p, 100 - p) / 100, 6)
    if not len(ns) or (p != 50 and beyond < _ENOUGH):
        return None
    return float(np.percentile(np.asarray(ns, np.float64), p))


def summarize_tails(ns: Sequence[int], name: str) -> dict[str, float | None]:
    """Return ``{name}_p50_ns``, ``_p90_ns`` and ``_p99_ns``."""
    return {f"{name}_p{p}_ns": percentile(ns, p) for p in (50, 90, 99)}


def make_shape_sort_key(shape: str) -> tuple[list[int], str]:
    """Return what sorts a written shape by its numbers: ``1x8`` before ``1x16``."""
    digits = "".join(c if c.isdigit() else " " for c in shape)
    return [int(number) for number in digits.split()], shape


if TYPE_CHECKING:  # requests, which name a workload, are read without NumPy
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

_QUICKER = 0.98
_LEAST_NS = 10_000_000  # time at least that a lane runs before it counts as settled


def run_rounds(lane: Lane, *rounds: int) -> None:
    """Run the calls of some rounds, one after the other."""
    for round_ in rounds:
        for session, feeds in lane.calls(round_):
            session.run(feeds)


def settle_lane(lane: Lane, span: Span) -> int:
    """Run a span's first round until it gets no quicker; return how often it ran.

    After another process ran, its weights are in the cache and this one's are not. Settled is the
    first run that does not improve the best so far by more than 2 %, after 10 ms at least.
    """
    calls = lane.calls(span.at)
    best, first = 0, lane.clock()
    before = first
    for count in range(1, span.drop + 1):
        for session, feeds in calls:
            session.run(feeds)
        now = lane.clock()
        elapsed = now - before
        if best and elapsed > _QUICKER * best and now - first >= _LEAST_NS:
            return count
        best = min(best or elapsed, elapsed)
        before = now
    return span.drop


def run_lanes(
    lanes: Sequence[Lane], work: Callable[[Lane], T], waiting: RunQueueMeter | None = None
) -> list[T]:
    """Do `work` on every lane at once and return the results in the lanes' order.

    The first lane is driven by the calling thread. An error is raised when all are done: the
    first, and none that only says that another lane failed. `waiting` is read before the threads
    end: the kernel forgets what ended threads waited.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    through, leave = threading.Semaphore(0), threading.Event()

    def act(index: int) -> None:
        try:
            results[index] = work(lanes[index])
        except BaseException as error:
            errors.append(error)
        if index:
            through.release()
            leave.wait()

    threads = [threading.Thread(target=act, args=(k,)) for k in range(1, len(lanes))]
    for thread in threads:
        thread.start()
    act(0)
    for _ in threads:
        through.acquire()
    if waiting is not None:
        waiting.read(len(lanes))
    leave.set()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, BrokenBarrierError)), errors[0])
    return [results[index] for index in range(len(lanes))]


class RunQueueMeter:
    """Share of the time since its making that threads of the process stood in the run queue."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._clock, self._before = lane.clock(), lane.waited()
        self._share: float | None = None

    def read(self, lanes: int = 1) -> None:
        """Take the reading now: the mean over this many lanes."""
        waited = self._lane.waited()
        elapsed = max(1, self._lane.clock() - self._clock) * lanes
        is_readable = self._before >= 0 and waited >= 0
        self._share = round(max(0, waited - self._before) / elapsed, 4) if is_readable else -1.0

    def share(self) -> float:
        """Return the share, read now unless it was before; -1 where it cannot be read."""
        if self._share is None:
            self.read()
        return -1.0 if self._share is None else self._share
