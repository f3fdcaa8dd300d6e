"""Coordinate descent over a backend's settings, each step tested against the best so far.

Waiting for a CPU is part of what settings change, so entries that a neighbour disturbed count in
its steps, where other comparisons drop them. What is claimed of the best is measured as a search
measures its finalists; entries that waited count there too where a neighbour was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from statistics import fmean

from ortune.core.acceptance import Outcome
from ortune.core.backend import Backend
from ortune.core.event import Progress, Sink, silent
from ortune.core.facts import Facts
from ortune.core.plugins.plugin import spell
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, claiming, fresh_pairs
from ortune.measurement.timing.turns import live
from ortune.recipe.descent import GAIN, walk
from ortune.recipe.space import Target


@dataclass(frozen=True)
class Answers:
    """How a candidate's outputs stand to those of the start.

    Attributes:
        fine: They are equal, or within the budget when the candidate changes numbers.
        said: In a few words.
        snr: Signal to noise, dB.
        max_error: Largest absolute difference.
    """

    fine: bool
    said: str
    snr: float
    max_error: float


@dataclass(frozen=True)
class Attempt:
    """One value of one setting, and what became of it.

    Attributes:
        setting: The field, or another name of the coordinate.
        value: The fields that it changes, as they are spelled.
        backend: All settings of the candidate, spelled.
        ratio: Its latency over that of the best before it; None when it did not run.
        kept: It became the best.
        why: Why it was kept or not.
        answers: Compared only when it was faster.
    """

    setting: str
    value: str
    backend: str
    ratio: Interval | None
    kept: bool
    why: str
    answers: Answers | None = None

    @property
    def outcome(self) -> Outcome:
        """What the value may be called by its interval."""
        if self.ratio is None:
            return Outcome.FAILED
        if not self.ratio.clear:
            return Outcome.LEVEL
        if self.answers is not None and not self.answers.fine:
            return Outcome.FAILS
        return Outcome.FASTER if self.ratio.high < 1 else Outcome.SLOWER


_ROUNDS = 2
_MOST = 5
"""Fresh pairs of processes at most behind a setting; two at least behind one that is kept."""
PROMISING = 0.95
"""Beyond two pairs, undecided settings are timed on only if they may gain this."""
_FINAL_SHARE = 0.25
"""Of the time: the winner is measured against the start in fresh pairs."""
_CPU_RUNS = 0.3
"""Seconds of running behind a figure of CPU time."""


@dataclass(frozen=True)
class Tools:
    """What the descent works with.

    Attributes:
        start: Start a worker of these settings, not loaded yet.
        compare: Compare a live worker's outputs with those of the start.
        tell: Receives each attempt.
        sink: Receives how far the descent is.
    """

    start: Callable[[Backend], Worker]
    compare: Callable[[Worker, Backend], Answers]
    tell: Callable[[Attempt], None]
    sink: Sink = silent


@dataclass
class Descent:
    """The state of a running descent.

    Attributes:
        waiting: Entries that waited for a CPU count in what is claimed.
        untried: Values of settings that were left for lack of time.
    """

    target: Target
    facts: Facts
    tools: Tools
    seconds: float
    waiting: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    finished: str = "done"
    untried: int = 0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._costs: list[float] = []
        self._taken: list[list[Pair]] = []
        self.best = self.target.backend

    @property
    def pair_seconds(self) -> float:
        """Seconds of timing a pair gets."""
        return min(4.0, max(1.0, self.seconds / 40))

    def run(self) -> Backend:
        """Go through the settings until a round changes nothing; return the best."""
        for _ in range(_ROUNDS):
            before = self.best
            self._round()
            if self.best == before or self.finished != "done":
                break
        return self.best

    def _round(self) -> None:
        with ExitStack() as stack:
            ((best, _),) = stack.enter_context(live(partial(self.tools.start, self.best)))
            tried = {attempt.backend for attempt in self.attempts}
            around = partial(self.target.coordinates, facts=self.facts)
            steps = walk(lambda: self.best, around)
            for setting, candidate in steps:
                if str(candidate) in tried:
                    continue
                if self._late():
                    self.finished = "time"
                    self.untried = 1 + sum(str(other) not in tried for _, other in steps)
                    return
                self._show(setting)
                attempt = self._attempt(best, setting, candidate)
                self.attempts.append(attempt)
                self.tools.tell(attempt)
                if attempt.kept:
                    self.best = candidate
                    stack.close()
                    ((best, _),) = stack.enter_context(live(partial(self.tools.start, candidate)))

    def _late(self) -> bool:
        """Whether what is left of the time belongs to the final pairs, if there will be any."""
        kept = 0.0
        if self.best != self.target.backend:
            kept = max(_FINAL_SHARE * self.seconds, 1.5 * stats.PAIRS * fmean(self._costs))
        return self._spent() > self.seconds - kept

    def _show(self, setting: str) -> None:
        self.tools.sink(Progress(f"trying {setting}", self._spent(), self.seconds))

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def _attempt(self, best: Worker, setting: str, candidate: Backend) -> Attempt:
        """Time a candidate in pairs until the answer is clear; compare its outputs once.

        The first pair is against the live process of the best, each further one is fresh.
        """
        tried = Attempt(setting, changed(self.best, candidate), str(candidate), None, False, "")
        pairs: list[Pair] = []
        self._taken.append([])
        # What one process of the best is quicker or slower by would be in all pairs.
        fresh = fresh_pairs(
            partial(self.tools.start, self.best),
            partial(self.tools.start, candidate),
            _MOST,
            Effort(seconds=self.pair_seconds),
            first=best,
        )
        began = time.monotonic()
        try:
            with closing(fresh):
                for one in fresh:
                    pairs.append(whole(one.pair))
                    self._taken[-1].append(self._counted(one.pair))
                    ratio = stats.ratio(pairs)
                    tried = replace(tried, ratio=ratio)
                    self._show(setting)
                    if ratio.low > 1 or ratio.value > (PROMISING if len(pairs) > 1 else GAIN):
                        break
                    answers = tried.answers or self.tools.compare(one.candidate, candidate)
                    tried = replace(tried, answers=answers)
                    self._costs.append(time.monotonic() - began)
                    if not answers.fine:
                        return replace(tried, why=f"cannot be kept: {answers.said}")
                    if len(pairs) > 1 and (ratio.high < 1 or self._late()):
                        break
                    began = time.monotonic()
        except BaselineFailed:
            raise
        except WorkerFailed as error:
            return replace(tried, why=f"does not run: {error.failure.reason}")
        if reason := _not_faster(ratio):
            return replace(tried, answers=None, why=reason)
        said = tried.answers.said if tried.answers else ""
        return replace(tried, kept=True, why=f"{_gain(ratio)}, {said}")

    def judged(self) -> tuple[Interval, Interval]:
        """Return latency and CPU time of the best over those of the start, in fresh pairs.

        As many pairs, as long, and the same interval as behind a claim of a search. CPU time is
        that of all threads, spinning after a run included; its ends are the least and the most of
        the pairs.
        """
        pairs: list[Pair] = []
        costs: list[tuple[int, int]] = []
        fresh = fresh_pairs(
            partial(self.tools.start, self.target.backend),
            partial(self.tools.start, self.best),
            stats.PAIRS,
            claiming(self.pair_seconds),
        )
        with closing(fresh):
            for one in fresh:
                pairs.append(self._counted(one.pair))
                runs = _runs(pairs[-1])
                costs.append((cpu_ns(one.baseline, runs), cpu_ns(one.candidate, runs)))
        shares = sorted(new / max(1, old) for old, new in costs)
        ratio = stats.ratio(pairs, learnt=self.learnt())
        self._taken.append(pairs)
        return ratio, Interval(shares[len(shares) // 2], shares[0], shares[-1])

    def learnt(self) -> stats.Learnt:
        """Return what all pairs so far tell about how far pairs differ here."""
        return stats.Learnt.of(self._taken)

    def disturbed(self) -> float:
        """Return the share of entries that a neighbour disturbed; NaN when it is not known."""
        return stats.disturbed([pair for pairs in self._taken for pair in pairs])

    def _counted(self, pair: Pair) -> Pair:
        return whole(pair) if self.waiting else pair


def whole(pair: Pair) -> Pair:
    """Return a pair in which every entry counts, waiting included.

    Where most entries waited, a run takes either its own time or a neighbour's time slice more:
    the mean of a burst then says what its median hides.
    """
    side = _mean if stats.disturbed([pair]) > 0.5 else _entries
    return Pair(tuple(Block(side(block.baseline), side(block.candidate)) for block in pair.blocks))


def _entries(burst: Burst) -> Burst:
    """Take the marks of waiting off, so that no entry is dropped."""
    return replace(burst, waited=(-1.0,) * len(burst.waited))


def _mean(burst: Burst) -> Burst:
    runs = burst.runs_each * len(burst.latency_ns)
    return Burst((round(fmean(burst.latency_ns)),), (-1.0,), runs)


def _runs(pair: Pair) -> int:
    """Return how many runs take a third of a second."""
    sample = [ns for block in pair.blocks for ns in block.baseline.latency_ns]
    return max(2, min(2000, int(_CPU_RUNS * 1e9 * len(sample) / max(1, sum(sample)))))


def cpu_ns(worker: Worker, runs: int) -> int:
    """Return CPU nanoseconds of all threads for a number of runs and what they spin afterwards."""
    worker.ask("rest")
    before = worker.ask("usage")["cpu_ns"]
    worker.ask("burst", at=0, runs=runs)
    worker.ask("rest")
    return int(worker.ask("usage")["cpu_ns"] - before)


def changed(base: Backend, other: Backend) -> str:
    """Return the fields in which a backend differs, as they are spelled."""
    return ", ".join(
        f"{f.name}={spell(getattr(other, f.name))}"
        for f in fields(other)
        if getattr(base, f.name) != getattr(other, f.name)
    )


def _not_faster(ratio: Interval) -> str:
    """Return why a ratio is no reason to change a setting; empty when it is one."""
    if ratio.low > 1:
        return f"slower: {ratio.value:.3f}"
    if ratio.high >= 1:
        return str(Outcome.LEVEL)
    if ratio.value > GAIN:
        return f"gains less than {100 * (1 - GAIN):.0f} %"
    return ""


def _gain(ratio: Interval) -> str:
    return f"{100 * (1 - ratio.value):.0f} % less time"
