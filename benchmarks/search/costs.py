"""What a recorded plan costs a search that has paid for others already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.search.bursts import Side
from benchmarks.search.table import Cut, Row, Table
from ortune.measurement.timing.turns import WarmTimes, size_bursts

RECORDED_BURST_S = 0.06
"""Seconds of a burst in the tables."""
WARM_S = 0.15
"""Seconds of runs that warm a side up, at least."""


@dataclass
class Spent:
    """What was paid once and is there from then on.

    Attributes:
        built: Steps whose build is there.
        ranges: What calibration has found out.
    """

    built: set[str] = field(default_factory=set)
    ranges: set[str] = field(default_factory=set)

    def cut(self, cut: Cut, passes: Mapping[str, Pass]) -> float:
        """Return the seconds of a build, and remember it; of ranges unknown one pass finds all.

        Args:
            passes: What is asked of samples -> the pass that found it out.
        """
        if cut.steps in self.built:
            return 0.0
        longest: dict[str, float] = {}
        for asked in cut.ranges:
            if asked not in self.ranges and asked in passes:
                model = asked.split(" ", 1)[0]
                longest[model] = max(longest.get(model, 0.0), passes[asked].seconds)
        for asked in cut.ranges:
            self.ranges |= passes[asked].found if asked in passes else {asked}
        if not cut.error:
            self.built.add(cut.steps)
        return cut.seconds + sum(longest.values())


@dataclass(frozen=True)
class Pass:
    """One pass over the samples.

    Attributes:
        found: All that it found out; more than was asked where others will ask for it.
    """

    seconds: float
    found: frozenset[str]


def passes(table: Table) -> dict[str, Pass]:
    """Return what was asked of samples -> the pass that found it out."""
    found: dict[str, Pass] = {}
    for cut in table.cuts.values():
        for asked, seconds in cut.calibrated.items():
            together = (other for other, s in cut.calibrated.items() if s == seconds)
            found[asked] = Pass(seconds, frozenset(together))
    return found


@dataclass(frozen=True)
class Paid:
    """What bursts of a row's two sides cost.

    Attributes:
        run_ns: A run of the baseline, and of the candidate.
        warm_s: Before the first burst, beyond the runs that warm up.
        burst_s: Of every burst, beyond the runs that count: threads that spin are waited for,
            runs that settle are dropped.
    """

    run_ns: tuple[int, int]
    warm_s: float
    burst_s: float

    @classmethod
    def of(cls, row: Row, base: Row) -> Paid:
        """Read it from a row, and from the original's where nothing of the row was timed."""
        turns = (row if any(row.pairs) else base).pairs[0]
        sides = [[s for t in turns for s in (t.bursts[at], t.bursts[-1 - at])] for at in (0, 1)]
        alike = all(one.alike for some in sides for one in some)
        run_ns = dict(enumerate(max(1, round(_typical(some))) for some in sides))
        sizes = size_bursts(
            {k: WarmTimes(ns, alike) for k, ns in run_ns.items()}, RECORDED_BURST_S
        )
        counted = sum(2 * size.total * run_ns[k] for k, size in sizes.items()) / 1e9
        warming = sum(max(WARM_S, 2 * ns / 1e9) for ns in run_ns.values())
        beyond = max(0.0, row.warm_s - warming), max(0.0, row.block_s - counted) / 4
        return cls((run_ns[0], run_ns[1]), *beyond)

    def burst(self, side: int, runs: int) -> float:
        """Return the seconds of a burst of so many runs."""
        return self.burst_s + runs * self.run_ns[side] / 1e9


def _typical(some: list[Side]) -> float:
    return median(ns for one in some for ns in one.latency_ns)
