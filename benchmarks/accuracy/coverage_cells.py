"""The cells of the coverage of `judge`: populations and the budgets that they are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy.populations import (
    HERE,
    LIMIT,
    LOSSES,
    Drawn,
    Rng,
    discordant,
    errors,
    even,
    fails,
    grouped_right,
    grouped_share,
    lognormal,
    losses,
    mixture,
    normal,
    opposed,
    powers,
    rare,
    right,
    single,
    spread,
)


@dataclass(frozen=True)
class Population:
    """What is drawn, and the budget that it is judged by.

    Attributes:
        kind: Of the metric, as the table calls it.
        draw: Returns about this many samples.
    """

    kind: str
    name: str
    budget: str
    draw: Callable[[Rng, int], Drawn]


@cache
def outside() -> list[Population]:
    """Return every population just outside its budget that a proof is asked of."""
    cosine = f"cosine>={LIMIT}"
    found = [
        Population("share", "normal", cosine, normal(0.95)),
        Population("share", "lognormal", cosine, lognormal(0.95)),
        Population("share", "mixture", cosine, mixture(0.95)),
        Population("share", "groups", cosine, grouped_share(0.95)),
        Population("share", "snr, loud and quiet", "snr>=30", powers(0.95)),
        Population("share", "max-error", "max-error<=0.01", errors(0.95)),
    ]
    for count in (20, 50, 100, 200, 500):
        share = 1 - 1 / count
        budget = f"cosine(share={share})>={LIMIT}"
        found.append(Population("share", f"one failure in {count}", budget, rare(share)))
    for won in (0.0, 0.005, 0.02, 0.1):
        name = f"paired, {won:.1%} won"
        found.append(Population("right", name, "top1>=base-0.01", discordant(0.01, won)))
    found.append(
        Population("right", "paired, 5 points", "top1>=base-0.05", discordant(0.05, 0.02))
    )
    found += [
        Population("right", f"absolute, {limit}", f"top1>={limit}", right(limit))
        for limit in (0.9, 0.99)
    ]
    for large in (False, True):
        name = "groups, the largest lost" if large else "groups"
        found.append(Population("right", name, "top1>=base-0.05", grouped_right(0.05, large)))
    path = f"{HERE}:quality"
    for name in LOSSES:
        found.append(Population("mean", name, f"{path}>=base-0.02", losses(name, 0.02)))
        draw = losses(name, 0.02, grouped=True)
        found.append(Population("mean", f"{name}, groups", f"{path}>=base-0.02", draw))
    found.append(
        Population("mean", "groups, large ones gain", f"{path}>=base-0.02", opposed(0.02))
    )
    for count in (20, 100, 500):
        name, budget = f"one failure in {count}", f"{path}>={1 - 1 / count}"
        found.append(Population("mean", name, budget, right(1 - 1 / count)))
    return found


@cache
def never() -> list[Population]:
    """Return perfect answers under budgets that no number of samples proves."""

    def perfect(rng: Rng, n: int) -> Drawn:
        return single(np.ones(n), 1.0)

    def silent(rng: Rng, n: int) -> Drawn:
        both = np.stack([1 + rng.random(n), np.zeros(n)], 1)
        return both, both.copy(), None

    return [
        Population("figure", "cosine", f"cosine(share=0)>={LIMIT}", perfect),
        Population("figure", "snr", "snr(share=0)>=30", silent),
        Population("figure", "aggregate", f"{HERE}:figure>=0.9", perfect),
        Population("figure", "mean without bounds", f"{HERE}:unbounded>=0.9", perfect),
    ]


@cache
def honest() -> list[Population]:
    """Return populations within their budget, for the power."""
    cosine, top1 = f"cosine>={LIMIT}", "top1>=base-0.01"
    found = [
        Population("share", f"{share:.1%} of the samples outside", cosine, fails(share))
        for share in (0.0, 0.01, 0.02)
    ]
    found += [
        Population("right", f"{each:.1%} lost, {each:.1%} won", top1, even(each))
        for each in (0.0, 0.005, 0.02)
    ]
    path = f"{HERE}:quality>=base-0.02"
    found += [
        Population("mean", f"losses of 0 +- {sd:g}", path, spread(sd)) for sd in (0.0, 0.02, 0.1)
    ]
    return found
