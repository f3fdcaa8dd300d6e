"""Whether the calibration data is enough: how far ranges of its two halves differ.

**Disagreement** of a tensor: how far apart the ranges of two disjoint sets of samples are, at the
end where they are further apart, in steps of the int8 grid over all samples (its range over 255).
**Stable** is a tensor whose halves disagree by at most 26 steps, 10 % of the range: the steps of
the two grids then differ by at most 10 %, which is 0.8 dB of rounding noise. **Enough** is data on
which nine tensors of ten are stable. Half the samples are judged, so what is used, all of them,
is better than what is called enough. It is said of ranges: what they cost in accuracy, if
anything, only scores tell (`compare_observers`).

**How many more**: let D(m) be the disagreement that one tensor of ten exceeds, between sets of m
samples. It falls about as a power of m, ``D(m) = c m^-b``; halves and quarters of the data give
two points, so ``b = log2(D(n/4) / D(n/2))``, held between 1/4 and 1. Two points are few, and what
is usual is 1/2 (averages; extremes of heavy tails are slower): the mean of both is taken. Solved
for ``D(n'/2) = 26``: ``n' = n (D(n/2) / 26)^(1/b)``. It is an extrapolation: beyond ten times the
samples no number is given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ortune.core import wording
from ortune.core.observer import Range, Ranges
from ortune.data.feeds import Feeds

STEPS = 255
TOLERANCE = 26.0
"""Steps, 10 % of the range."""
TENSORS = 0.9
"""Share of the tensors that must be stable."""
FEWEST = 8
"""Independent samples below which nothing is said."""
QUARTERS = 16
"""Independent samples from which quarters say how fast the disagreement falls."""
FURTHEST = 10
"""Times the samples that are there, up to which a number is given."""
_SLOWEST, _USUAL, _FASTEST = 0.25, 0.5, 1.0


@dataclass(frozen=True)
class Stability:
    """What halves of the data say.

    Attributes:
        enough: None where the samples are too few to say.
        stable: Share of the tensors that are.
        apart: The disagreement of the halves, in steps, that one tensor of ten exceeds.
        exponent: By which it falls with the number of samples; None where that is not measured.
        add: Samples to add; 0 when there are enough, None when nothing useful can be said.
        why: One sentence.
    """

    enough: bool | None
    stable: float
    apart: float
    exponent: float | None
    add: int | None
    why: str

    def __str__(self) -> str:
        word = {True: "enough data", False: "not enough data", None: "cannot tell"}[self.enough]
        return f"{word}: {self.why}"


def quarters(feeds: Feeds, indices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Divide samples into four parts of about the same size, never a group or equal samples.

    The order is drawn from their contents.
    """
    units: dict[str, list[int]] = {}
    for index in indices:
        name = feeds.groups[index] if feeds.groups else feeds.digests[index]
        units.setdefault(name, []).append(index)
    order = sorted(units, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    parts: list[list[int]] = [[], [], [], []]
    for name in order:
        min(parts, key=len).extend(units[name])
    return tuple(tuple(sorted(part)) for part in parts)


def independent(feeds: Feeds, indices: Sequence[int]) -> int:
    """Count samples that have no group or content in common."""
    names = feeds.groups or feeds.digests
    return len({names[index] for index in indices})


def sets(parts: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Return what is observed apart from all samples: two halves, and quarters if they help.

    Args:
        parts: Of `quarters`.
        count: Independent samples.
    """
    one, two, three, four = parts
    found = [(*one, *three), (*two, *four)]
    if count < FEWEST:
        return []
    return [*found, *map(tuple, parts)] if count >= QUARTERS else found


def apart(seen: Range, one: Range | None, two: Range | None) -> float:
    """Return the disagreement of two ranges in steps of a third one's grid.

    A tensor that one of the sets never saw, or of no extent, tells nothing: NaN.
    """
    step = (max(seen.high, 0.0) - min(seen.low, 0.0)) / STEPS
    if one is None or two is None or not step > 0:
        return math.nan
    return max(abs(one.low - two.low), abs(one.high - two.high)) / step


def judge(
    whole: Mapping[str, Range], others: Sequence[Ranges], count: int, samples: int
) -> Stability:
    """Apply the rule.

    Args:
        whole: Key -> range over all samples.
        others: Answers for the `sets`.
        count: Independent samples.
    """
    if not others:
        few = (
            f"{wording.count(count, 'independent sample')}: too few to say: calibrate on "
            f"{FEWEST} or more"
        )
        return Stability(None, math.nan, math.nan, None, None, few)
    halves = _between(whole, others[0], others[1])
    if not len(halves):
        return Stability(None, math.nan, math.nan, None, None, "no tensor has a range")
    stable = float(np.mean(halves <= TOLERANCE))
    worst = _exceeded(halves)
    exponent = _exponent(whole, others, worst)
    if worst <= TOLERANCE:
        why = f"the two halves of it agree within 10 % on {stable:.0%} of the ranges"
        return Stability(True, stable, worst, exponent, 0, why)
    grow = (worst / TOLERANCE) ** (1 / (exponent or _USUAL))
    lacking = f"its two halves disagree by more than 10 % on {1 - stable:.0%} of the ranges"
    if grow > FURTHEST:
        why = (
            f"{lacking}, and that falls so slowly with their number that more than {FURTHEST} "
            "times the samples would be needed: these are extremes; see what an observer that "
            "clips them costs or gains"
        )
        return Stability(False, stable, worst, exponent, None, why)
    more = _rounded(samples * (grow - 1))
    return Stability(
        False,
        stable,
        worst,
        exponent,
        more,
        f"{lacking}: add about {wording.count(more, 'sample')}",
    )


def _between(whole: Mapping[str, Range], one: Ranges, two: Ranges) -> np.ndarray:
    found = [apart(seen, one.get(key), two.get(key)) for key, seen in whole.items()]
    return np.array([value for value in found if not math.isnan(value)], np.float64)


def _exceeded(values: np.ndarray) -> float:
    """Return what a share of 1 - TENSORS of the values exceeds."""
    return float(np.sort(values)[max(0, math.ceil(TENSORS * len(values)) - 1)])


def _exponent(whole: Mapping[str, Range], others: Sequence[Ranges], halves: float) -> float | None:
    if len(others) < 3 or not halves > 0:
        return None
    pairs = [_between(whole, one, two) for one, two in combinations(others[2:], 2)]
    quarters = float(np.mean([_exceeded(values) for values in pairs if len(values)]))
    if not quarters > 0:
        return None
    return (_USUAL + min(_FASTEST, max(_SLOWEST, math.log2(quarters / halves)))) / 2


def _rounded(count: float) -> int:
    """Round up to one leading digit, two from 100 on: more would be made up."""
    digits = 1 if count < 100 else 2
    unit: int = 10 ** max(0, math.floor(math.log10(max(count, 1))) + 1 - digits)
    return math.ceil(count / unit) * unit
