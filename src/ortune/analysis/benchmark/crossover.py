"""A batch sweep: who is ahead at which batch, and where two contestants cross."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, pairwise
from pathlib import Path
from typing import Any

from ortune.core.capabilities import placed
from ortune.core.trial import Burst, Interval, Pair
from ortune.measurement.timing import stats


@dataclass(frozen=True)
class Crossover:
    """Two contestants over batch sizes.

    Attributes:
        one: The first one's name.
        two: The second one's.
        ratios: Batch -> time per sample of `two` over that of `one`, ascending.
        batch: Where the sides change, between two batches; None when they do not, or twice.
        says: All that in a line.
    """

    one: str
    two: str
    ratios: Mapping[int, Interval]
    batch: float | None
    says: str = ""

    def ahead(self, batch: int) -> str | None:
        """Return who is faster at a batch; None inside the noise."""
        found = self.ratios[batch]
        return self.one if found.low > 1 else self.two if found.high < 1 else None

    def __str__(self) -> str:
        """Say in a line who is ahead where."""
        sides = {batch: self.ahead(batch) for batch in self.ratios}
        unclear = [str(batch) for batch, side in sides.items() if side is None]
        noise = f"inside the noise at {', '.join(unclear)}" if unclear else ""
        runs = _runs(sides)
        if not runs:
            return f"{self.one} and {self.two}: {noise}, no crossover"
        if len(runs) == 1:
            clear = [str(batch) for batch, side in sides.items() if side]
            where = f"at {', '.join(clear)}" if unclear else "at every batch"
            return "; ".join([f"{runs[0][0]} is ahead {where}", *filter(None, [noise])]) + (
                "; no crossover"
            )
        if len(runs) > 2:
            told = ", ".join(f"{side} at {_span(batches)}" for side, batches in runs)
            return "; ".join([f"the sides change more than once: {told}", *filter(None, [noise])])
        (early, up_to), (late, since) = runs
        said = f"{early} is ahead up to batch {up_to[-1]}, {late} from {since[0]} on"
        about = f"crossover at about batch {self.batch:.3g}" if self.batch else ""
        return "; ".join(filter(None, [said, about, noise]))


def crossovers(
    rows: Sequence[Mapping[str, Any]], between: Callable[[int, int], Interval] | None = None
) -> list[Crossover]:
    """Compare every two contestants of a bench over its batches.

    Args:
        rows: The ``rows`` of `ortune.bench`; rows that failed or were timed again are left out,
            and contestants that share fewer than two batches are not compared.
        between: The ratio of two rows by their indices, the second over the first; by their own
            pairs alone where it is not given.
    """
    several = len({row["model"] for row in rows}) > 1
    lines: dict[tuple[str, str], dict[int, int]] = {}
    for index, row in enumerate(rows):
        if not row["error"] and not row["again"]:
            who = (str(row["model"]), placed(row))
            lines.setdefault(who, {})[max(1, int(row["batch"]))] = index
    ratio = between or (lambda one, two: _ratio(rows[one], rows[two]))
    found = []
    for one, two in combinations(lines, 2):
        shared = sorted(lines[one].keys() & lines[two].keys())
        if len(shared) > 1:
            ratios = {b: ratio(lines[one][b], lines[two][b]) for b in shared}
            names = _name(one, several), _name(two, several)
            made = Crossover(*names, ratios, _between(ratios))
            found.append(replace(made, says=str(made)))
    return found


def _ratio(one: Mapping[str, Any], two: Mapping[str, Any]) -> Interval:
    """Return the second row's time over the first's: both ran in turns at this batch."""
    return stats.ratio(list(map(Pair.of, _sets(one), _sets(two))))


def _sets(row: Mapping[str, Any]) -> list[list[Burst]]:
    alike = bool(row.get("alike"))
    return [
        [Burst(tuple(ns), tuple(w), each, alike) for ns, w in zip(turn, waited, strict=True)]
        for turn, waited, each in zip(row["turns"], row["waited"], row["runs_each"], strict=True)
    ]


def _between(ratios: Mapping[int, Interval]) -> float | None:
    """Interpolate where the ratio is 1: its logarithm is taken as straight over log2(batch)."""
    sides = {b: -1 if r.high < 1 else 1 if r.low > 1 else 0 for b, r in ratios.items()}
    clear = [(batch, side) for batch, side in sides.items() if side]
    changes = [(a, b) for (a, s), (b, t) in pairwise(clear) if s != t]
    if len(changes) != 1:
        return None
    first, last = changes[0]
    inside = [batch for batch in ratios if first <= batch <= last]
    for low, high in pairwise(inside):
        a, b = math.log(ratios[low].value), math.log(ratios[high].value)
        if a * b <= 0 and a != b:
            share = a / (a - b)
            return float(low * (high / low) ** share)
    return None


def _runs(sides: Mapping[int, str | None]) -> list[tuple[str, list[int]]]:
    """Return who is ahead in order, with the batches; those inside the noise are left out."""
    clear = [(side, batch) for batch, side in sides.items() if side]
    return [
        (side, [batch for _, batch in group])
        for side, group in groupby(clear, key=lambda item: item[0])
    ]


def _span(batches: Sequence[int]) -> str:
    return str(batches[0]) if len(batches) == 1 else f"{batches[0]}-{batches[-1]}"


def _name(who: tuple[str, str], several: bool) -> str:
    return f"{Path(who[0]).name} on {who[1]}" if several else who[1]
