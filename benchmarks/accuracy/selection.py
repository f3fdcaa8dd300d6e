"""The choice among 30 plans, all just outside the budget, through the whole selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.populations import HERE, LIMIT, OUT
from ortune.core.budget import Budget
from ortune.core.trial import Verdict
from ortune.measurement.accuracy import judge_accuracy

PLANS = 30
FINALISTS = 3
ERROR = 0.05

Floats = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Selection:
    """Plans that are judged on the same samples.

    Attributes:
        count: Samples in all; half search, half prove.
        draw: Returns the records [plans, samples] of the candidates and those of the baseline.
    """

    name: str
    budget: str
    count: int
    draw: Callable[[Rng, int], tuple[Floats, Floats]]


def _shares(share: float, alike: float) -> Callable[[Rng, int], tuple[Floats, Floats]]:
    """Plans fail on the same samples now and then: a sample is hard for all of them."""
    fails = (1 - share) * OUT

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        own, common = rng.random((PLANS, n)), rng.random(n)
        level = np.where(rng.random((PLANS, n)) < alike, common, own)
        return np.where(level < fails, 0.9, 0.9999), np.ones(n)

    return draw


def _rights(margin: float, won: float) -> Callable[[Rng, int], tuple[Floats, Floats]]:
    lost = won + margin * OUT

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        base = (rng.random(n) < 0.8).astype(np.float64)
        at = rng.random((PLANS, n))
        flipped = np.where(base == 1, at < lost / 0.8, at < won / 0.2)
        return np.where(flipped, 1 - base, base), base

    return draw


def _losses(margin: float) -> Callable[[Rng, int], tuple[Floats, Floats]]:
    """Few samples lose all that there is to lose."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        return np.where(rng.random((PLANS, n)) < margin * OUT, 0.0, 1.0), np.ones(n)

    return draw


SELECTIONS = tuple(
    Selection(f"{label}, {n} samples", budget, n, draw)
    for n in (40, 120, 400, 1600)
    for label, budget, draw in (
        ("share, plans independent", f"cosine>={LIMIT}", _shares(0.95, 0.0)),
        ("share, plans alike", f"cosine>={LIMIT}", _shares(0.95, 0.7)),
        ("right, relative", "top1>=base-0.01", _rights(0.01, 0.01)),
        ("mean with bounds", f"{HERE}:quality>=base-0.02", _losses(0.02)),
    )
)


def chosen(one: Selection, rng: Rng, draws: int) -> dict[str, Any]:
    """Return in how many draws any finalist was called proved; all of them are outside.

    The search's samples throw out what fails on them and choose the best by score; what fails on
    all samples is thrown out; the final samples prove. `pooled` counts what would be called
    proved were the search's samples added at the full error.
    """
    budget, half = Budget.parse(one.budget), one.count // 2
    search, final = np.arange(half), np.arange(half, one.count)
    hits = pooled = 0
    for turn in range(draws):
        plans, base = one.draw(rng, one.count)
        base = base[:, None]
        finalists = _finalists(budget, plans[:, search], base[search])
        found = [
            judge_accuracy(
                budget, plans[k][:, None], base, proof=final, error=ERROR / FINALISTS, seed=turn
            ).verdict
            for k in finalists
        ]
        hits += Verdict.PROVED in found
        added = [
            judge_accuracy(budget, plans[k][:, None], base, seed=turn).verdict for k in finalists
        ]
        pooled += Verdict.PROVED in added
    return {"budget": one.budget, "draws": draws, "proved": hits, "pooled": pooled}


def _finalists(budget: Budget, plans: Floats, base: Floats) -> list[int]:
    """Return the best plans on the search's samples, by their records' mean, that hold there."""
    found: list[int] = []
    for k in np.argsort(-plans.mean(axis=1), kind="stable"):
        if judge_accuracy(budget, plans[k][:, None], base).verdict is not Verdict.FAILS:
            found.append(int(k))
        if len(found) == FINALISTS:
            break
    return found
