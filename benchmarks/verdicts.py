"""What A/A pairs and slow twins say of the verdicts that five pairs give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.fresh import pair_of
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
        rows: Pairs, as ``benchmarks.aa`` keeps them.
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
    judged = [_verdict(rows[k : k + stats.PAIRS]) for k in _fives(len(rows))]
    means = [stats.centre(stats.block_logs(pair)) for pair in equal]
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
        "resampled claims": _claims(equal, stats.PAIRS, None),
        "sd of a pair": round(float(np.std(means)), 5),
        "half-width": _half([stats.ratio(equal[k : k + stats.PAIRS]) for k in _fives(len(rows))]),
        "disturbed": _mean([row["disturbed"] for row in rows]),
    }
    if beside:
        found["neighbour's cores"] = _mean([row["neighbour's cores"] for row in rows])
    return found | (_power(twins, found["seconds a pair"]) if twins else {})


def _fives(count: int) -> range:
    """Return where the disjoint fives begin."""
    return range(0, count - stats.PAIRS + 1, stats.PAIRS)


def _verdict(rows: Sequence[Row]) -> tuple[int, bool]:
    """Return a verdict's claim, -1 for faster and 1 for slower, and whether it is too noisy.

    A machine that is too noisy for a verdict makes none; where there is a claim, it is not.
    """
    found = stats.ratio([pair_of(row["blocks"]["A/A"]) for row in rows])
    claim = _claim(found)
    record = codec.decode(noise.Record, rows[0]["noise"])
    disturbed = float(np.mean([row["disturbed"] for row in rows]))
    return claim, not claim and noise.judge(record, disturbed, found).too_noisy


def _claim(found: Interval) -> int:
    return int(found.low > 1) - int(found.high < 1)


def _power(twins: Sequence[Pair], seconds: float) -> dict[str, Any]:
    """Return how often the twin is found, and the seconds of pairs that find it often enough."""
    by_count = {count: _claims(twins, count, 1) for count in _counts()}
    enough = {
        power: next((count for count, share in by_count.items() if share >= power), None)
        for power in POWERS
    }
    every = stats.ratio(twins)
    return {
        "twin's ratio": [round(x, 4) for x in (every.value, every.low, every.high)],
        "twins found in five pairs": by_count[stats.PAIRS],
        "twins called faster": sum(
            _claim(stats.ratio(twins[k : k + stats.PAIRS])) < 0 for k in _fives(len(twins))
        ),
        "power by pairs": {str(count): share for count, share in by_count.items()},
    } | {
        f"seconds for {power:.0%}": None if count is None else round(count * seconds, 1)
        for power, count in enough.items()
    }


def _counts() -> list[int]:
    return [3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, MOST]


def _claims(every: Sequence[Pair], count: int, side: int | None) -> float:
    """Return the share of resampled verdicts that claim; of one side where one is given."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(RESAMPLED):
        claim = _claim(stats.ratio([every[i] for i in rng.integers(0, len(every), count)]))
        hits += claim == side if side is not None else claim != 0
    return round(hits / RESAMPLED, 4)


def _half(found: Sequence[Interval]) -> float | None:
    halves = [math.log(one.high / one.low) / 2 for one in found]
    return round(float(np.median(halves)), 5) if halves else None


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)
