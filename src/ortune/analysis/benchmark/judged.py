"""What the timed rows of a bench come to: ratios, the fastest, whether the machine was calm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortune.analysis.benchmark.interleave import Ratios, TimedRow, pairs
from ortune.analysis.benchmark.result import BenchResult, NoiseVerdict, SelfCheck, Winner
from ortune.measurement.capabilities import capabilities
from ortune.measurement.machine import noise
from ortune.measurement.timing import stats


def result(
    groups: Sequence[Sequence[TimedRow]], made: Sequence[dict[str, Any]], record: noise.Record
) -> BenchResult:
    """Judge what was timed.

    Args:
        groups: The rows of every batch.
        made: The JSON of all rows, in the same order.
    """
    every = [row for group in groups for row in group]
    stand = Ratios(groups)
    ratios = stand.of_first()
    again = next((k for k, row in enumerate(made) if row["again"]), None)
    equal = None if again is None else ratios[again]
    timed = [pair for g in groups for r in g if not r.error for pair in pairs(r, g[0])]
    claimed = any(
        r is not None and r.clear for r, row in zip(ratios, made, strict=True) if not row["again"]
    )
    reach = stats.half_width(stand.learnt(), max(1, len(every[0].turns)))
    judged = noise.judge(record, stats.disturbed(timed), equal, reach=reach, claimed=claimed)
    first = groups[0][0].contestant
    offered = capabilities(first.backend, first.environment)
    places = dict.fromkeys(one.contestant.environment for one in every)
    winners = []
    start = 0
    for group in groups:
        place = None if judged.too_noisy else stand.winner(group)
        row = None if place is None else start + place
        winners.append(Winner(made[start]["workload"], made[start]["batch"], row))
        for k in range(start, start + len(group)):
            if (held := ratios[k]) is not None:
                made[k]["typical_ns"] = made[start]["p50_ns"] * held.value
        start += len(group)
    return BenchResult(
        rows=tuple(made),
        ratios=tuple(ratios),
        winner=winners[0].row if len(winners) == 1 else None,
        winners=tuple(winners),
        self_check=None
        if again is None or equal is None
        else SelfCheck(again, equal, not equal.clear),
        machine=offered.machine,
        versions=offered.versions,
        environments={name: capabilities(first.backend, name).versions for name in places},
        noise=record.readings(),
        judgement=NoiseVerdict(judged.too_noisy, noise.RULE, judged.advice),
        counts=stand.counts(),
    )
