"""What A/A pairs and slow twins say of the verdicts that five pairs give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.fresh import pair_of
from ortune.core.plugins import codec
from ortune.core.trial import Interval, Pair
from ortune.measurement.machine import noise
from ortune.measurement.timing import stats

RESAMPLED = 400
"""Fives drawn of a cell's pairs; the error of 1 % is half a point."""
POWERS = (0.9, 0.8)
MOST = 60
"""Pairs at most, of which the power is asked."""

Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what all cells say together, and each of them.

    Args:
        rows: Pairs, as ``benchmarks.noise.aa`` keeps them.
    """
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["index"])):
        cells.setdefault(tuple(row["cell"]), []).append(row)
    found = [_cell(cell, mine) for cell, mine in cells.items()]
    verdicts = sum(one["verdicts"] for one in found)
    quiet = [one for one in found if not one["beside a neighbour"]]
    asked = sum(one["verdicts"] for one in quiet)
    return {
        "verdicts": verdicts,
        "claims between equals": sum(one["claims"] for one in found),
        "called faster, called slower": [
            sum(one[k] for one in found) for k in ("faster", "slower")
        ],
        "twins called faster": sum(one.get("twins called faster", 0) for one in found),
        "resampled share of claims": _mean([one["resampled claims"] for one in found]),
        "largest of a cell": max(one["resampled claims"] for one in found),
        "quiet verdicts too noisy": sum(one["too noisy"] for one in quiet),
        "quiet verdicts": asked,
        "cells": found,
    }


def _cell(cell: tuple[Any, ...], rows: Sequence[Row]) -> dict[str, Any]:
    model, threads, beside = cell
    equal = [pair_of(row["blocks"]["A/A"]) for row in rows]
    twins = [pair_of(row["blocks"]["twin"]) for row in rows if "twin" in row["blocks"]]
    judged = [_verdict(rows, k) for k in _fives(len(rows))]
    known = [
        stats.PooledVariance.pool(_others(rows, k), _first(rows, k)) for k in range(len(rows))
    ]
    # A pair whose runs waited has no block that counts.
    means = [
        stats.compute_trimmed_mean(logs) for pair in equal if len(logs := stats.block_logs(pair))
    ]
    found = {
        "model": model,
        "threads": threads,
        "beside a neighbour": beside,
        "pairs": len(rows),
        "seconds a pair": _mean([row["seconds"] for row in rows]),
        "seconds of timing": _mean([row["timed"] for row in rows]),
        "verdicts": len(judged),
        "claims": sum(claim != 0 for claim, _ in judged),
        "faster": sum(claim < 0 for claim, _ in judged),
        "slower": sum(claim > 0 for claim, _ in judged),
        "too noisy": sum(noisy for _, noisy in judged),
        "resampled claims": _claims(equal, stats.PAIRS, None, known),
        "resampled claims at any look": _claims_at_any_look(equal, known),
        "sd of a pair": round(float(np.std(means)), 5),
        "half-width": round(stats.half_width(stats.PooledVariance.pool([equal])), 5),
        "disturbed": _mean([row["disturbed"] for row in rows]),
    }
    if beside:
        found["neighbour's cores"] = _mean([row["neighbour's cores"] for row in rows])
    return found | (_power(twins, known, found["seconds a pair"]) if twins else {})


def _fives(count: int) -> range:
    """Return where the disjoint fives begin."""
    return range(0, count - stats.PAIRS + 1, stats.PAIRS)


def _verdict(rows: Sequence[Row], k: int) -> tuple[int, bool]:
    """Return a verdict's claim, -1 for faster and 1 for slower, and whether it is too noisy.

    The run around it has two finalists more and an A/A pair: a twin, where it ran, and other equal
    pairs of the cell.

    Args:
        rows: Pairs of the cell.
        k: Where the five begin.
    """
    mine = rows[k : k + stats.PAIRS]
    five, others, first = (
        [pair_of(row["blocks"]["A/A"]) for row in mine],
        _others(rows, k),
        _first(rows, k),
    )
    found = stats.latency_ratio(five, learnt=stats.PooledVariance.pool(others, first))
    equal = stats.latency_ratio(first, learnt=stats.PooledVariance.pool([five, *others]))
    reach = stats.half_width(stats.PooledVariance.pool([five, *others], first))
    record = codec.decode(noise.Record, mine[0]["noise"])
    disturbed = float(np.mean([row["disturbed"] for row in mine]))
    judged = noise.judge_noise(record, disturbed, equal, reach=reach, claimed=found.clear)
    return _claim(found), judged.too_noisy


def _others(rows: Sequence[Row], k: int) -> list[list[Pair]]:
    """Return the other finalists of a run whose five begin at `k`: none has its baselines."""
    turns = [(k + stats.PAIRS + i) % len(rows) for i in range(2 * stats.PAIRS)]
    twins = [rows[i]["blocks"].get("twin") for i in turns[: stats.PAIRS]]
    found = [[pair_of(rows[i]["blocks"]["A/A"]) for i in turns[stats.PAIRS :]]]
    return [*found, [pair_of(one) for one in twins if one]] if all(twins) else found


def _first(rows: Sequence[Row], k: int) -> list[Pair]:
    """Return the A/A pair that a run begins with."""
    return [pair_of(rows[(k + 3 * stats.PAIRS) % len(rows)]["blocks"]["A/A"])]


def _claim(found: Interval) -> int:
    return int(found.low > 1) - int(found.high < 1)


def _power(
    twins: Sequence[Pair], known: Sequence[stats.PooledVariance], seconds: float
) -> dict[str, Any]:
    """Return how often the twin is found, and the seconds of pairs that find it often enough."""
    by_count = {count: _claims(twins, count, 1, known) for count in _counts()}
    enough = {
        power: next((count for count, share in by_count.items() if share >= power), None)
        for power in POWERS
    }
    every = stats.latency_ratio(twins)
    return {
        "twin's ratio": [round(x, 4) for x in (every.value, every.low, every.high)],
        "twins found in five pairs": by_count[stats.PAIRS],
        "twins called faster": sum(
            _claim(stats.latency_ratio(twins[k : k + stats.PAIRS])) < 0 for k in _fives(len(twins))
        ),
        "power by pairs": {str(count): share for count, share in by_count.items()},
    } | {
        f"seconds for {power:.0%}": None if count is None else round(count * seconds, 1)
        for power, count in enough.items()
    }


def _counts() -> list[int]:
    return [5, 8, 10, 15, 20, 30, 45, MOST]


def _claims(
    every: Sequence[Pair], count: int, side: int | None, known: Sequence[stats.PooledVariance]
) -> float:
    """Return the share of resampled verdicts that claim; of one side where one is given.

    Args:
        known: What the rest of a run tells of how far pairs differ; one of them a verdict.
    """
    rng = np.random.default_rng(0)
    hits = 0
    for turn in range(RESAMPLED):
        drawn = [every[i] for i in rng.integers(0, len(every), count)]
        claim = _claim(stats.latency_ratio(drawn, learnt=known[turn % len(known)]))
        hits += claim == side if side is not None else claim != 0
    return round(hits / RESAMPLED, 4)


def _claims_at_any_look(every: Sequence[Pair], known: Sequence[stats.PooledVariance]) -> float:
    """Return the share of resampled finals that would claim after any of their pairs.

    A search ends a finalist's timing as soon as it is told from the original.
    """
    rng = np.random.default_rng(0)
    hits = 0
    for turn in range(RESAMPLED):
        drawn = [every[i] for i in rng.integers(0, len(every), stats.PAIRS)]
        learnt = known[turn % len(known)]
        hits += any(
            _claim(stats.claim_ratio(drawn[:n], learnt))
            for n in range(stats.FEWEST_PAIRS, stats.PAIRS + 1)
        )
    return round(hits / RESAMPLED, 4)


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)
