"""Which precision each region takes: the fastest whole whose accuracy costs keep a limit."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highspy import Highs

LONGEST_S = 5.0
"""Seconds after which the best solution so far is taken; hundreds of regions take milliseconds."""
_GAP = 1e-9
"""Of the least time: solutions within it are as fast, and the one of least cost is taken."""


@dataclass(frozen=True)
class Choice:
    """One precision of a region.

    Attributes:
        time: What the region takes, in any unit that adds up; negative is a gain.
        cost: What it loses, in any unit that adds up.
    """

    precision: str
    time: float
    cost: float

    @property
    def measured(self) -> bool:
        """Whether both numbers are finite."""
        return math.isfinite(self.time) and math.isfinite(self.cost)


@dataclass(frozen=True)
class Border:
    """Two neighbouring regions, and the time that is lost where their precisions differ."""

    one: str
    two: str
    time: float


@dataclass(frozen=True)
class Both:
    """Two regions that lose less where both take a precision than they do one at a time.

    Attributes:
        cost: That is in the cost of either, and is lost once.
    """

    one: str
    two: str
    precision: str
    cost: float


@dataclass(frozen=True)
class Solution:
    """A precision for every region.

    Attributes:
        chosen: Region -> precision, in the order of the regions.
        time: Sum over regions and borders.
        cost: Sum over regions, less what pairs lose once; uncorrected.
    """

    chosen: Mapping[str, str]
    time: float
    cost: float

    def of(self, precision: str) -> tuple[str, ...]:
        """Return the regions that take a precision."""
        return tuple(name for name, taken in self.chosen.items() if taken == precision)


def solve(
    choices: Mapping[str, Sequence[Choice]],
    borders: Sequence[Border],
    allowed: float,
    *,
    correction: float = 1.0,
    pairs: Sequence[Both] = (),
) -> Solution | None:
    """Return the fastest choice whose summed cost, corrected, keeps what is allowed.

    An integer programme: x[region, precision] is 0 or 1, one a region; y[border] is 1 where its
    sides differ; z[pair] may be 1 where both take its precision. Of solutions as fast the one of
    least cost is taken. One thread, no randomness: equal questions, equal answers, unless the time
    limit ends the search of a very large one.

    Args:
        choices: Region -> its precisions. One whose time or cost is not finite is not taken; a
            region needs one that is.
        borders: Between these regions; none costs less than nothing.
        allowed: Most that the costs may sum up to; infinity takes the fastest of all.
        correction: Measured over predicted cost, above 0.
        pairs: Of these regions; those of a precision that one is not offered do not count.

    Returns:
        None where even the least costs exceed what is allowed.

    Raises:
        ValueError: A region has nothing to choose, a border or a pair is negative, or of a region
            that is not there, or `allowed` or `correction` is no such number.
    """
    offered = {name: [one for one in some if one.measured] for name, some in choices.items()}
    _demand(offered, (*borders, *pairs), allowed, correction)
    own = (min(one.cost for one in some) for some in offered.values())
    least = math.fsum([*own, *(-pair.cost for pair in pairs)])
    if least * correction > allowed:
        return None
    if not offered:
        return Solution({}, 0.0, 0.0)
    programme = _Programme(offered, borders, pairs, allowed / correction)
    return programme.solution()


def _demand(
    offered: Mapping[str, Sequence[Choice]],
    between: Sequence[Border | Both],
    allowed: float,
    correction: float,
) -> None:
    if empty := [name for name, some in offered.items() if not some]:
        raise ValueError(f"region '{empty[0]}' has no precision with a finite time and cost")
    for one in between:
        kind, value = ("border", one.time) if isinstance(one, Border) else ("pair", one.cost)
        if not 0 <= value < math.inf:
            raise ValueError(f"a {kind} costs {value}")
        if lost := {one.one, one.two} - offered.keys():
            raise ValueError(f"a {kind} is of '{min(lost)}', which is no region")
    if math.isnan(allowed):
        raise ValueError("what is allowed is not a number")
    if not 0 < correction < math.inf:
        raise ValueError(f"a correction of {correction}")


class _Programme:
    """Columns are choices, borders, pairs; rows are regions, sides of both, and the limit."""

    def __init__(
        self,
        offered: Mapping[str, Sequence[Choice]],
        borders: Sequence[Border],
        pairs: Sequence[Both],
        allowed: float,
    ) -> None:
        self._offered, self._borders = offered, [b for b in borders if b.time]
        self._columns = [(name, one) for name, some in offered.items() for one in some]
        self._at = {(name, one.precision): at for at, (name, one) in enumerate(self._columns)}
        known = (p for p in pairs if all(side in self._at for side in self._sides(p)))
        self._pairs = [pair for pair in known if pair.cost]
        self._allowed = allowed
        self._time = _scale([one.time for _, one in self._columns])
        self._cost = _scale([one.cost for _, one in self._columns])

    def solution(self) -> Solution | None:
        """Solve for the time, then for the least cost at that time; None where nothing fits."""
        highs, infinity = self._posed()
        times = [one.time / self._time for _, one in self._columns]
        times += [border.time / self._time for border in self._borders]
        times += [0.0] * len(self._pairs)
        taken = self._run(highs, times)
        if highs.modelStatusToString(highs.getModelStatus()) == "Infeasible":
            return None
        fastest = math.fsum(t for t, x in zip(times, taken, strict=True) if x)
        every = list(range(len(times)))
        highs.addRow(-infinity, fastest + _GAP * max(1.0, abs(fastest)), len(every), every, times)
        again = self._run(highs, self._costs())
        found, first = self._read(again), self._read(taken)
        # Tolerances of the solver let a row be missed by a millionth.
        return found if found.time <= first.time or found.cost < first.cost else first

    def _posed(self) -> tuple[Highs, float]:
        import highspy  # a solver is loaded where one is needed

        make: Any = highspy.Highs  # untyped
        with _unprinted():
            highs = make()
        highs.silent()
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("random_seed", 1)
        highs.setOptionValue("mip_rel_gap", 0.0)
        highs.setOptionValue("mip_abs_gap", 0.0)
        highs.setOptionValue("time_limit", LONGEST_S)
        first = len(self._columns) + len(self._borders)
        count = first + len(self._pairs)
        for at in range(count):
            highs.addVar(0.0, 1.0)
            highs.changeColIntegrality(at, highspy.HighsVarType.kInteger)
        infinity = float(highs.getInfinity())
        for name, some in self._offered.items():
            row = [self._at[name, one.precision] for one in some]
            highs.addRow(1.0, 1.0, len(row), row, [1.0] * len(row))
        for index, border in enumerate(self._borders, len(self._columns)):
            self._bordered(highs, index, border, infinity)
        for index, pair in enumerate(self._pairs, first):  # z <= x of either side
            for side in self._sides(pair):
                highs.addRow(-infinity, 0.0, 2, [index, self._at[side]], [1.0, -1.0])
        if math.isfinite(self._allowed):
            row = list(range(count))
            highs.addRow(-infinity, self._allowed / self._cost, count, row, self._costs())
        return highs, infinity

    def _costs(self) -> list[float]:
        """Return what each column adds to the cost."""
        own = [one.cost / self._cost for _, one in self._columns]
        return [*own, *[0.0] * len(self._borders), *(-p.cost / self._cost for p in self._pairs)]

    @staticmethod
    def _sides(pair: Both) -> tuple[tuple[str, str], ...]:
        return (pair.one, pair.precision), (pair.two, pair.precision)

    def _bordered(self, highs: Any, index: int, border: Border, infinity: float) -> None:
        """Add y >= x[one, p] - x[two, p] for every precision of either side."""
        sides = [self._offered[border.one], self._offered[border.two]]
        for precision in dict.fromkeys(one.precision for some in sides for one in some):
            row = {index: 1.0}
            for name, weight in ((border.one, -1.0), (border.two, 1.0)):
                if (at := self._at.get((name, precision))) is not None:
                    row[at] = row.get(at, 0.0) + weight
            highs.addRow(0.0, infinity, len(row), list(row), list(row.values()))

    def _run(self, highs: Any, weights: Sequence[float]) -> list[bool]:
        """Minimise a sum over the columns and say which are taken."""
        for at, weight in enumerate(weights):
            highs.changeColCost(at, weight)
        highs.run()
        return [value > 0.5 for value in highs.getSolution().col_value]

    def _read(self, taken: Sequence[bool]) -> Solution:
        chosen = {name: one for (name, one), x in zip(self._columns, taken, strict=False) if x}
        between = (
            b.time for b in self._borders if chosen[b.one].precision != chosen[b.two].precision
        )
        once = (
            -pair.cost
            for pair in self._pairs
            if all(chosen[name].precision == precision for name, precision in self._sides(pair))
        )
        return Solution(
            {name: one.precision for name, one in chosen.items()},
            math.fsum([*(one.time for one in chosen.values()), *between]),
            math.fsum([*(one.cost for one in chosen.values()), *once]),
        )


@contextmanager
def _unprinted() -> Iterator[None]:
    """Keep from standard output what native code writes: the solver's first instance names itself.

    Scripts read that output.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _scale(numbers: Sequence[float]) -> float:
    """Return what numbers are divided by: tolerances of the solver are absolute."""
    return max(map(abs, numbers), default=0.0) or 1.0
