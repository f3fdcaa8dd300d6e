"""Processes timed in turns, A B C C B A, while nothing else runs: the rules of the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from ortune.core.trial import Burst
from ortune.core.workload import Span
from ortune.measurement.process import Worker

_BURST_NS = 60_000_000
_WARM_NS = 150_000_000
_ENTRY_NS = 1_000_000
"""Runs shorter than this are averaged in groups: the clock and the loop cost about 1 us."""
_DROP_NS = 20_000_000
"""After the other process ran, the first run is cold; it is dropped when runs are short."""

T = TypeVar("T")


@dataclass(frozen=True)
class Started:
    """What a fresh process took until it had answered once.

    Attributes:
        peak_rss: Bytes at most so far.
        placement: Execution provider -> nodes it took.
    """

    load_ns: int
    first_ns: int
    peak_rss: int
    placement: Mapping[str, int]


def ready(worker: Worker) -> Started:
    """Load and run once.

    Raises:
        WorkerFailed: It does not run.
    """
    loaded, first = worker.ask("load"), worker.ask("first")
    return Started(loaded["load_ns"], first["first_ns"], first["peak_rss"], loaded["placement"])


@contextmanager
def live(*starts: Callable[[], Worker]) -> Iterator[list[tuple[Worker, Started]]]:
    """Start processes one by one, each ready before the next starts; end them afterwards.

    Raises:
        WorkerFailed: One does not run.
    """
    with ExitStack() as stack:
        found = []
        for start in starts:
            worker = stack.enter_context(start())
            found.append((worker, ready(worker)))
        yield found


def warm(worker: Worker) -> int:
    """Run until latencies settle; return the quickest run in ns."""
    answer = worker.ask("burst", at=0, runs=2)
    quick, spent = min(answer["latency_ns"]), answer["spent_ns"]
    while spent < _WARM_NS:
        runs = max(2, min(500, _WARM_NS // 4 // max(quick, 1)))
        answer = worker.ask("burst", at=0, runs=runs)
        quick, spent = min(quick, *answer["latency_ns"]), spent + answer["spent_ns"]
    return int(quick)


def pace(*quickest: int) -> Span:
    """Size bursts by the sides' quickest runs, ns: about 60 ms of the slowest, or two runs."""
    slow, fast = max(*quickest, 1), max(1, min(quickest))
    each = max(1, _ENTRY_NS // fast)
    runs = max(2, _BURST_NS // (slow * each))
    return Span(0, runs, each, 1 if slow < _DROP_NS else 0)


def burst(worker: Worker, size: Span, at: int) -> Burst:
    """Ask for a burst of a size, from a position of the timing cycle."""
    answer = worker.ask("burst", at=at, runs=size.runs, each=size.each, drop=size.drop)
    return Burst(tuple(answer["latency_ns"]), tuple(answer["waited"]), size.each)


def blocks(
    contestants: Sequence[T],
    size: Span,
    timed: Callable[[T, int], Burst | None],
    *,
    rotate: bool = False,
) -> Iterator[dict[T, Burst]]:
    """Yield the bursts of one block after another, both halves of a contestant joined.

    Args:
        timed: Time a contestant's burst from a position of the cycle; None takes it out.
        rotate: Begin each block with the next contestant: who runs twice in a row meets warm
            caches the second time.
    """
    left = list(contestants)
    for turn in count():
        order = rotated(left, turn) if rotate else list(left)
        halves: list[dict[T, Burst]] = []
        for half in (order, order[::-1]):
            at = (2 * turn + len(halves)) * size.total
            halves.append({})
            for one in half:
                if one not in left:
                    continue
                if (found := timed(one, at)) is None:
                    left.remove(one)
                else:
                    halves[-1][one] = found
        yield {one: _join(halves[0][one], halves[1][one]) for one in left}


def rotated(order: Sequence[T], turn: int) -> list[T]:
    """Return the order of a block's first half: each turn begins with the next."""
    first = turn % len(order)
    return [*order[first:], *order[:first]]


def _join(one: Burst, two: Burst) -> Burst:
    return Burst(one.latency_ns + two.latency_ns, one.waited + two.waited, one.runs_each)
