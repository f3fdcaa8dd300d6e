"""Populations of records just outside a budget, and honest ones, for the coverage of `judge`.

A population draws records of samples that are as good as possible and still not within its
budget: a test at 5 % may call it proved in one draw of twenty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Rng: TypeAlias = np.random.Generator
Drawn: TypeAlias = tuple[Floats, Floats, list[str] | None]
"""Records of the candidate and of the baseline, [samples, k], and groups."""

LIMIT = 0.999
OUT = 1.001
"""How much more than allowed is outside: as little as rounding cannot take away."""
SIZES = 8
"""Samples of the largest group; sizes from 1 are equally frequent."""


def quality(expected: Any, actual: Any, label: Any) -> float:
    """Stand for a score between 0 and 1; only records are drawn."""
    raise NotImplementedError


def unbounded(expected: Any, actual: Any, label: Any) -> float:
    """Stand for a score without declared bounds."""
    raise NotImplementedError


def figure(expected: Any, actual: Any, label: Any) -> float:
    """Stand for a score that is no mean over samples."""
    raise NotImplementedError


quality.bounds = (0.0, 1.0)  # type: ignore[attr-defined]
figure.aggregate = lambda records: float(np.median(records))  # type: ignore[attr-defined]
HERE = "benchmarks.accuracy.populations"


def single(values: Floats, base: Floats | float) -> Drawn:
    """Return records of one number, without groups."""
    whole = np.broadcast_to(np.asarray(base, np.float64), values.shape)
    return values[:, None], whole[:, None].copy(), None


def _groups(rng: Rng, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sizes of groups that hold about n samples, and the group of each sample."""
    count = max(1, round(n / ((SIZES + 1) / 2)))
    sizes = rng.integers(1, SIZES + 1, count)
    return sizes, np.repeat(np.arange(count), sizes)


def _named(of: NDArray[np.int64]) -> list[str]:
    return [str(one) for one in of]


def _quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)


def normal(share: float) -> Callable[[Rng, int], Drawn]:
    """Cosines spread evenly around their mean; too many of them below the limit."""
    shift = _quantile((1 - share) * OUT)
    return lambda rng, n: single(LIMIT + 1e-4 * (rng.standard_normal(n) - shift), 1.0)


def lognormal(share: float) -> Callable[[Rng, int], Drawn]:
    """Errors of very different size."""
    shift = _quantile(1 - (1 - share) * OUT)
    return lambda rng, n: single(1 - 1e-3 * np.exp(rng.standard_normal(n) - shift), 1.0)


def rare(share: float) -> Callable[[Rng, int], Drawn]:
    """All samples are perfect but for a few that are broken."""
    fails = (1 - share) * OUT
    return lambda rng, n: single(np.where(rng.random(n) < fails, 0.0, 1.0), 1.0)


def mixture(share: float) -> Callable[[Rng, int], Drawn]:
    """Most samples are perfect; the others lie anywhere below, some by a hair."""
    fails = (1 - share) * OUT

    def draw(rng: Rng, n: int) -> Drawn:
        below = LIMIT - 1e-5 - rng.random(n) ** 4
        return single(np.where(rng.random(n) < fails, below, 1 - 1e-6 * rng.random(n)), 1.0)

    return draw


def grouped_share(share: float) -> Callable[[Rng, int], Drawn]:
    """Samples of a group are alike; of a bad group one sample is outside, or all."""
    fails = (1 - share) * OUT

    def draw(rng: Rng, n: int) -> Drawn:
        sizes, of = _groups(rng, n)
        bad, whole = rng.random(len(sizes)) < fails, rng.random(len(sizes)) < 0.5
        first = np.concatenate([[True], of[1:] != of[:-1]])
        out = bad[of] & (whole[of] | first)
        values = np.where(out, 0.9, 0.9999) + 1e-5 * rng.random(len(sizes))[of]
        return values[:, None], np.ones((len(of), 1)), _named(of)

    return draw


def powers(share: float) -> Callable[[Rng, int], Drawn]:
    """Signal and noise power: loud and quiet samples, 30 dB kept by too few."""
    shift = _quantile((1 - share) * OUT)

    def draw(rng: Rng, n: int) -> Drawn:
        loud = np.exp(2 * rng.standard_normal(n))
        db = 30 + 3 * (rng.standard_normal(n) - shift)
        base = np.stack([loud, np.zeros(n)], 1)
        return np.stack([loud, loud * 10 ** (-db / 10)], 1), base, None

    return draw


def errors(share: float) -> Callable[[Rng, int], Drawn]:
    """Largest errors, of which less is better."""
    shift = _quantile(1 - (1 - share) * OUT)
    return lambda rng, n: single(0.01 * np.exp(rng.standard_normal(n) - shift), 0.0)


def discordant(margin: float, won: float) -> Callable[[Rng, int], Drawn]:
    """Right and wrong answers: some are lost, some are won."""
    lost = won + margin * OUT

    def draw(rng: Rng, n: int) -> Drawn:
        at = rng.random(n)
        right = rng.random(n) < 0.8
        base = np.where(at < lost, 1.0, np.where(at < lost + won, 0.0, right))
        found = np.where(at < lost, 0.0, np.where(at < lost + won, 1.0, right))
        return found[:, None], base[:, None], None

    return draw


def right(limit: float) -> Callable[[Rng, int], Drawn]:
    """Right and wrong answers under an absolute limit."""
    wrong = (1 - limit) * OUT
    return lambda rng, n: single((rng.random(n) >= wrong).astype(np.float64), 1.0)


def grouped_right(margin: float, large: bool) -> Callable[[Rng, int], Drawn]:
    """Whole groups are lost: any of them, or the largest alone."""
    often = margin * OUT * ((SIZES + 1) / 2 if large else 1.0)

    def draw(rng: Rng, n: int) -> Drawn:
        sizes, of = _groups(rng, n)
        lost = (rng.random(len(sizes)) < often) & ((sizes == SIZES) | (not large))
        return np.where(lost[of], 0.0, 1.0)[:, None], np.ones((len(of), 1)), _named(of)

    return draw


def losses(name: str, margin: float, grouped: bool = False) -> Callable[[Rng, int], Drawn]:
    """Scores between 0 and 1 that lose a little more than the margin on average."""
    loss = LOSSES[name](margin * OUT)

    def draw(rng: Rng, n: int) -> Drawn:
        sizes, of = _groups(rng, n) if grouped else (np.ones(n, np.int64), np.arange(n))
        lost = loss(rng, len(sizes))[of]
        base = np.where(lost > 0.5, 1.0, np.where(lost < 0, 0.5, np.maximum(0.5, lost)))
        found = np.clip(base - lost, 0.0, 1.0)
        return found[:, None], base[:, None], _named(of) if grouped else None

    return draw


def opposed(margin: float) -> Callable[[Rng, int], Drawn]:
    """Large groups gain a tenth, small ones lose more: what comes first looks like all."""
    half = SIZES // 2
    small, every = half * (half + 1) / 2, SIZES * (SIZES + 1) / 2
    loss = (margin * OUT * every + 0.1 * (every - small)) / small

    def draw(rng: Rng, n: int) -> Drawn:
        sizes, of = _groups(rng, n)
        lost = np.where(sizes <= half, loss, -0.1)[of]
        return 0.5 - lost[:, None], np.full((len(of), 1), 0.5), _named(of)

    return draw


def _normal_losses(mean: float) -> Callable[[Rng, int], Floats]:
    return lambda rng, n: mean + 0.05 * np.clip(rng.standard_normal(n), -4, 4)


def _lognormal_losses(mean: float) -> Callable[[Rng, int], Floats]:
    """Losses of very different size, at most 1; scaled so that the mean is right."""
    levels = (np.arange(20_000) + 0.5) / 20_000
    spread = np.exp(1.5 * np.array([_quantile(one) for one in levels]))
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = np.minimum(middle * spread, 1.0).mean() < mean
        low, high = (middle, high) if below else (low, middle)
    return lambda rng, n: np.minimum(high * np.exp(1.5 * rng.standard_normal(n)), 1.0)


def _rare_losses(mean: float) -> Callable[[Rng, int], Floats]:
    return lambda rng, n: np.where(rng.random(n) < mean, 1.0, 0.0)


def _mixed_losses(mean: float) -> Callable[[Rng, int], Floats]:
    """Some gain 0.2, some lose 0.4, most stay."""
    gains, lose = 0.1, (mean + 0.02) / 0.4

    def draw(rng: Rng, n: int) -> Floats:
        at = rng.random(n)
        return np.where(at < gains, -0.2, np.where(at < gains + lose, 0.4, 0.0))

    return draw


LOSSES: Mapping[str, Callable[[float], Callable[[Rng, int], Floats]]] = {
    "normal": _normal_losses,
    "lognormal": _lognormal_losses,
    "rare": _rare_losses,
    "mixture": _mixed_losses,
}


def fails(share: float) -> Callable[[Rng, int], Drawn]:
    """A share of the samples is outside."""
    return lambda rng, n: single(np.where(rng.random(n) < share, 0.99, 0.9999), 1.0)


def even(each: float) -> Callable[[Rng, int], Drawn]:
    """As many answers are won as are lost."""

    def draw(rng: Rng, n: int) -> Drawn:
        at = rng.random(n)
        rest = rng.random(n) < 0.8
        base = np.where(at < each, 1.0, np.where(at < 2 * each, 0.0, rest))
        found = np.where(at < each, 0.0, np.where(at < 2 * each, 1.0, rest))
        return found[:, None], base[:, None], None

    return draw


def spread(sd: float) -> Callable[[Rng, int], Drawn]:
    """Scores that neither gain nor lose on average."""

    def draw(rng: Rng, n: int) -> Drawn:
        return single(0.5 + sd * np.clip(rng.standard_normal(n), -4, 4), 0.5)

    return draw
