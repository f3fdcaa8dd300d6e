"""Statistics over raw samples: pure functions, computed late.

A *block* is one A B B A turn in which both sides run the same samples; its log-ratio is the
median over entries of log(candidate / baseline). A *pair* is two live processes. Blocks of
one pair share the processes' memory layout, so a pair has an effect of its own that no number of
blocks averages out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ortune.core.trial import Block, Interval, Pair

CONFIDENCE = 0.99
PAIR_SD = 0.006
"""Prior standard deviation of a pair's own effect on the log-ratio: measured by A/A runs,
`benchmarks/results/aa.json`."""
PRIOR_DF = 4
WAITED = 0.02
"""Entries whose threads waited longer than this share for a CPU are dropped."""
_ENOUGH = 12

Floats = NDArray[np.float64]


def calm(block: Block) -> NDArray[np.bool_]:
    """Return which entries no neighbour disturbed on either side."""
    waited = np.maximum(block.baseline.waited, block.candidate.waited)
    return np.asarray(waited <= WAITED)


def block_logs(pair: Pair) -> Floats:
    """Return the log-ratio of every block that counts, shape [blocks].

    It is the median of the entries' log-ratios: entry i ran the same samples on both sides. Only
    undisturbed entries count as soon as the pair has a dozen of them in four blocks.
    """
    kept = [calm(block) for block in pair.blocks]
    enough = sum(int(k.sum()) for k in kept) >= _ENOUGH and sum(k.any() for k in kept) >= 4
    logs = []
    for block, keep in zip(pair.blocks, kept, strict=True):
        top = np.maximum(np.asarray(block.candidate.latency_ns, np.float64), 1.0)
        bottom = np.maximum(np.asarray(block.baseline.latency_ns, np.float64), 1.0)
        entries = np.log(top / bottom)
        if enough:
            entries = entries[keep]
        if len(entries):
            logs.append(float(np.median(entries)))
    return np.array(logs)


def centre(logs: Floats) -> float:
    """Return the 20 % trimmed mean: robust against single disturbed blocks."""
    cut = int(0.2 * len(logs))
    return float(np.sort(logs)[cut : len(logs) - cut].mean())


def bootstrap(logs: Floats, draws: int = 2000, seed: int = 0) -> float:
    """Return the bootstrap standard error of `centre` over blocks.

    With Hesterberg's sqrt(n / (n - 1)) for its narrowness (doi:10.1080/00031305.2015.1089789).
    """
    n = len(logs)
    if n < 2:
        return float("inf")
    rng = np.random.default_rng(seed)
    rows = np.sort(logs[rng.integers(0, n, (draws, n))], axis=1)
    cut = int(0.2 * n)
    return float(rows[:, cut : n - cut].mean(axis=1).std()) * math.sqrt(n / (n - 1))


def ratio(pairs: Sequence[Pair], confidence: float = CONFIDENCE) -> Interval:
    """Return candidate over baseline latency with its interval.

    Every pair gives one estimate with a bootstrap error from its blocks. The spread between pairs
    is moderated towards the prior `PAIR_SD` with `PRIOR_DF` degrees of freedom (Smyth 2004,
    doi:10.2202/1544-6115.1027), so that one pair is honest and five pairs speak for themselves.
    """
    logs = [block_logs(pair) for pair in pairs if pair.blocks]
    if not logs:
        return Interval(float("nan"), float("nan"), float("nan"))
    means = np.array([centre(one) for one in logs])
    within = float(np.mean([bootstrap(one) ** 2 for one in logs]))
    prior = PAIR_SD**2 + within
    n = len(means)
    seen = float(means.var(ddof=1)) if n > 1 else 0.0
    variance = (PRIOR_DF * prior + (n - 1) * seen) / (PRIOR_DF + n - 1)
    half = student(confidence, PRIOR_DF + n - 1) * math.sqrt(variance / n)
    middle = float(means.mean())
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def student(confidence: float, df: int) -> float:
    """Return the two-sided quantile of Student's t, for df >= 4 within 0.3 %.

    Abramowitz and Stegun 26.7.5: an expansion around the normal quantile.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / df**power for power, term in enumerate(terms, 1)))


def disturbed(pairs: Sequence[Pair]) -> float:
    """Return the share of entries that a busy neighbour disturbed; NaN when it cannot be read."""
    shares = [
        w
        for p in pairs
        for b in p.blocks
        for burst in (b.baseline, b.candidate)
        for w in burst.waited
    ]
    known = [w for w in shares if w >= 0]
    return sum(w > WAITED for w in known) / len(known) if known else float("nan")


def percentile(latency_ns: Sequence[int], p: float) -> float | None:
    """Return a percentile in ns; None for a tail that fewer than 10 samples lie in."""
    if p != 50 and len(latency_ns) * min(p, 100 - p) / 100 < 10:
        return None
    return float(np.percentile(np.asarray(latency_ns, np.float64), p))
