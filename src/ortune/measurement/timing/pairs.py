"""Paired timing: two live workers, asked for bursts in the order A B B A."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Span
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats, turns

_FEWEST, _SLOW = 3, 2
"""Blocks before a pair is looked at; where they take twice the seconds, as many as have an error
of their own."""


class BaselineFailed(WorkerFailed):
    """The side that the other is measured against failed."""


class Stop(Protocol):
    """Decides part way that a pair needs no more timing."""

    def __call__(self, pair: Pair, done: float | None = None) -> str:
        """Return why it ends; empty to go on. `done` is in blocks, 0.5 the first A B alone."""


@dataclass(frozen=True)
class Effort:
    """How long a pair may take.

    Attributes:
        min_blocks: Blocks before any early stop, unless they take twice the seconds: then two.
        decide: Stop early when the interval lies wholly on one side of 1 and is narrow enough.
        burst: Seconds of a burst; a block has four, and what its sides take to settle.
        stop: Asked after a warm-up run, after the first A B and after every block.
    """

    min_blocks: int = 4
    max_blocks: int = 24
    seconds: float = 4.0
    decide: bool = True
    burst: float = 0.15
    stop: Stop | None = field(default=None, repr=False, compare=False)

    def should_stop(self, pair: Pair, done: float | None = None) -> bool:
        """Whether a pair ends here, whatever else is wanted of it."""
        return self.stop is not None and bool(self.stop(pair, done))


def claim_effort(search_s: float) -> Effort:
    """Return the effort of each of the `stats.PAIRS` fresh pairs behind a claim.

    Together they take as long as three pairs of a search, of `search_s` seconds each: fresh
    processes tell more than longer ones.
    """
    return Effort(max_blocks=20, seconds=search_s * 3 / stats.PAIRS, decide=False)


@dataclass(frozen=True)
class LivePair:
    """A timed pair whose processes still run.

    Attributes:
        baseline_started: What the baseline's took; None where it ran already.
    """

    baseline: Worker
    candidate: Worker
    started: turns.StartupTimes
    pair: Pair
    baseline_started: turns.StartupTimes | None = None


Progress = Callable[[Interval, int], None]
"""Receives the ratio so far and the number of blocks behind it."""


def time_pair(
    baseline: Worker,
    candidate: Worker,
    effort: Effort,
    progress: Progress = lambda ratio, done: None,
) -> Pair:
    """Time blocks A B B A until the effort is spent, the answer is clear or it is stopped.

    A side begins when the other's threads have stopped spinning: they would take its CPUs. What
    was stopped within its first block has a block of what was timed until then.

    Raises:
        BaselineFailed: The baseline died.
        WorkerFailed: The candidate died.
    """
    with _attribute_failure(baseline):
        first = turns.warmup_probe(baseline)
        base, seen = turns.warm_up(baseline, first), turns.warmup_probe(candidate)
        runs = Pair((_warmup_block(base, first, seen),))
        if effort.should_stop(runs, 0):
            return runs
        sizes = turns.size_bursts(
            {baseline: base, candidate: turns.warm_up(candidate, seen)}, effort.burst
        )
        bursts: dict[Worker, Burst] = {}
        last, over = candidate, False

        def time_burst(worker: Worker, size: Span) -> Burst | None:
            nonlocal last, over
            if over:
                return None
            if worker is not last:
                last.ask("wait_idle")
            last = worker
            measured = turns.request_burst(worker, size)
            if len(bursts) < 2:
                bursts[worker] = measured
                over = len(bursts) == 2 and effort.should_stop(first_bursts(), 0.5)
            return measured

        def first_bursts() -> Pair:
            return Pair((Block(bursts[baseline], bursts[candidate]),))

        completed: list[Block] = []
        until = time.monotonic() + effort.seconds
        for measured in turns.iterate_blocks(sizes, time_burst):
            if over:
                return first_bursts()
            completed.append(Block(measured[baseline], measured[candidate]))
            late = time.monotonic() - until
            if len(completed) >= (_FEWEST if late < effort.seconds else _SLOW):
                ratio = stats.latency_ratio([Pair(tuple(completed))], stats.SEARCHING)
                progress(ratio, len(completed))
                if is_pair_complete(ratio, len(completed), late, effort):
                    break
            if len(completed) >= effort.max_blocks or effort.should_stop(Pair(tuple(completed))):
                break
    return Pair(tuple(completed))


def fresh_pairs(
    baseline: Callable[[], Worker],
    candidate: Callable[[], Worker],
    count: int,
    effort: Effort,
    progress: Progress = lambda ratio, done: None,
    *,
    first: Worker | None = None,
) -> Generator[LivePair]:
    """Time pairs of fresh processes: a process has an effect of its own on its latency.

    Sides take turns in who starts first: of two processes of one model who starts second is 1
    % faster (`benchmarks.noise.aa`: in 19 of 20 cells, where the same side always did). The
    processes of a pair live until the next pair is asked for; close the iterator to end the
    last one's.

    Args:
        first: A baseline that runs already, for the first pair; it is left running.

    Raises:
        BaselineFailed: The baseline does not run.
        WorkerFailed: The candidate does not run.
    """
    for turn in range(count):
        with ExitStack() as stack:
            # While one imports, so does the other.
            if turn == 0 and first is not None:
                base, worker = first, stack.enter_context(candidate())
                order = [worker]
            elif turn % 2:
                order = [stack.enter_context(start()) for start in (candidate, baseline)]
                worker, base = order
            else:
                order = [stack.enter_context(start()) for start in (baseline, candidate)]
                base, worker = order
            worker.take_turns_with(base)
            started: dict[Worker, turns.StartupTimes] = {}
            for process in order:
                with _attribute_failure(base):
                    started[process] = turns.wait_until_ready(process)
            pair = time_pair(base, worker, effort, progress)
            yield LivePair(base, worker, started[worker], pair, started.get(base))


def _warmup_block(
    base: turns.WarmTimes, baseline: Mapping[str, Any], candidate: Mapping[str, Any]
) -> Block:
    """Return the candidate's best of its first runs beside the baseline, as a block.

    Beside a warm run; where samples differ, beside the baseline's first run of the same one.
    """
    runs, baseline_runs = candidate["latency_ns"], baseline["latency_ns"]
    if base.alike:
        at = min(range(len(runs)), key=lambda index: runs[index])
        baseline_run = _single_run_burst(base.run_ns)
    else:
        at = min(range(len(runs)), key=lambda index: runs[index] / max(1, baseline_runs[index]))
        baseline_run = _single_run_burst(baseline_runs[at], baseline["waited"][at])
    return Block(baseline_run, _single_run_burst(runs[at], candidate["waited"][at]))


def _single_run_burst(latency_ns: int, waited: float = -1.0) -> Burst:
    """Return a single run as a burst."""
    return Burst((max(1, latency_ns),), (waited,), alike=True)


def is_pair_complete(ratio: Interval, done: int, late: float, effort: Effort) -> bool:
    """Say whether a pair of some blocks needs no more, `late` seconds beyond the effort's."""
    if effort.decide and ratio.low > 1.3:
        return True
    if done < effort.min_blocks and late < effort.seconds:
        return False
    decided = (ratio.high < 1 or ratio.low > 1.02) and ratio.high / ratio.low < 1.08
    return late > 0 or (effort.decide and decided)  # the side is known, the estimate worth 4 %


@contextmanager
def _attribute_failure(baseline: Worker) -> Iterator[None]:
    try:
        yield
    except WorkerFailed as error:
        if error.worker is baseline:
            raise BaselineFailed(error.failure, baseline) from error
        raise
