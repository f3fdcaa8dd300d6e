"""Would margins of the outputs make a plan likely with fewer samples, and at what error?

    python -m benchmarks.accuracy.margins [--draws 400]

A sample's margin is how far the original's best class lies before the next; a plan moves it by its
noise, and the answer flips where the noise is the larger one. The rule that is tried predicts
the answers lost from all pairs of one sample's margin and another's noise, and leaves the rest of
the budget to losses that no margin tells: of these none or few may be seen (`judge_by_margins`).
Beside it stands the rule that is used, the exact test of answers lost and won. Plans lose answers
in different ways; of some the prediction knows nothing. Results: ``results/margins.json``.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.populations import OUT, Rng
from benchmarks.result_files import RESULTS, write_results
from ortune.core.trial import LIKELY_ERROR
from ortune.measurement.statistics import binomial, paired

Floats = NDArray[np.float64]
COUNTS, PLANS = (200, 500, 1000), (1, 30)
BUDGET = 0.01
FAR = 4.0
"""Times the noise: a flip from so far no margin has told."""
MARGIN = 8.0
"""Mean of the margins, which are gamma of shape 2; the noise of a plan is set by what it loses."""


@dataclass(frozen=True)
class Way:
    """How plans lose answers.

    Attributes:
        smooth: Loss by noise that is the same at every margin.
        broken: Loss by inputs whose answer turns whatever its margin.
        factor: Noise of samples with small margins, over that of the others, which `smooth` has.
    """

    smooth: float
    broken: float = 0.0
    factor: float = 1.0


OUTSIDE: Mapping[str, Way] = {
    "noise alone": Way(BUDGET * OUT),
    "broken inputs alone": Way(0, BUDGET * OUT),
    "half by noise, half broken": Way(BUDGET / 2, BUDGET / 2 * OUT),
    "noise 1.3 times as large at small margins": Way(BUDGET * OUT, factor=1.3),
    "noise twice as large at small margins": Way(BUDGET * OUT, factor=2.0),
}
INSIDE: Mapping[str, Way] = {
    "half of the budget, by noise": Way(BUDGET / 2),
    "half of the budget, broken inputs": Way(0, BUDGET / 2),
    "a tenth of the budget, by noise": Way(BUDGET / 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS / "margins.json")
    asked = parser.parse_args()
    rows = []
    for outside, ways in ((True, OUTSIDE), (False, INSIDE)):
        for name, way in ways.items():
            for count in COUNTS:
                rng = np.random.default_rng(zlib.crc32(f"{name} {count}".encode()))
                rows += accept_plans(way, rng, count, asked.draws, name, outside)
                print(rows[-2:], flush=True)
    write_results(asked.out, {"budget": BUDGET, "draws": asked.draws, "rows": rows})


def accept_plans(
    way: Way, rng: Rng, count: int, draws: int, name: str, outside: bool
) -> list[dict[str, Any]]:
    """Count how often a search accepts a plan: of plans outside any, of plans inside the first."""
    by_labels, by_margins = (np.zeros((draws, max(PLANS) if outside else 1)) for _ in range(2))
    noise = find_noise(way)
    for draw in range(draws):
        margins = rng.gamma(2, MARGIN / 2, count)
        for plan in range(by_labels.shape[1]):
            moved, lost = draw_plan(way, noise, margins, rng)
            by_labels[draw, plan] = compute_chance(int(lost.sum()), count)
            by_margins[draw, plan] = judge_by_margins(margins, moved, lost)
    rows = []
    for plans in PLANS:
        each = LIKELY_ERROR / plans
        found = {
            key: int((p[:, :plans].min(axis=1) <= each).sum())
            for key, p in (("labels", by_labels), ("margins", by_margins))
        }
        rows.append({"name": name, "outside": outside, "n": count, "plans": plans, **found})
    return rows


def find_noise(way: Way) -> float:
    """Return the standard deviation of the noise that loses so much by small margins."""
    rng = np.random.default_rng(5)
    margins, unit = rng.gamma(2, MARGIN / 2, 1_000_000), rng.standard_normal(1_000_000)
    unit *= np.where(margins < MARGIN / 4, way.factor, 1.0)
    needed = np.sort(margins[unit > 0] / unit[unit > 0])
    return float(needed[round(way.smooth * len(margins))])


@cache
def compute_chance(lost: int, count: int) -> float:
    """Return the p-value of so many answers lost and none won."""
    return paired.p_value(count, lost, 0, BUDGET, LIKELY_ERROR)


def draw_plan(way: Way, noise: float, margins: Floats, rng: Rng) -> tuple[Floats, NDArray[Any]]:
    """Return by how much a plan moves each sample's margin, and which answers it loses."""
    spread = noise * np.where(margins < MARGIN / 4, way.factor, 1.0)
    moved = spread * rng.standard_normal(len(margins))
    moved = np.where(rng.random(len(margins)) < way.broken, margins + 4 * MARGIN, moved)
    return moved, moved > margins


def judge_by_margins(margins: Floats, moved: Floats, lost: NDArray[Any]) -> float:
    """Return the chance of so few losses from afar, were the loss what the budget allows."""
    spread = float(np.median(np.abs(moved))) / 0.6745
    near = np.sort(moved[np.abs(moved) <= FAR * spread])
    if not len(near):
        near = np.zeros(1)
    larger = len(near) - np.searchsorted(near, margins, side="right")
    predicted = float(larger.mean()) / len(near)
    afar = int((lost & (np.abs(moved) > FAR * spread)).sum())
    left = BUDGET - predicted
    if left <= 0 or lost.mean() > BUDGET:
        return 1.0
    return binomial.cdf(afar, len(margins), left)


if __name__ == "__main__":
    main()
