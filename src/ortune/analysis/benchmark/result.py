"""What `bench` returns, and how timed rows come to it: ratios, the fastest, the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortune.analysis.benchmark.interleave import Ratios, TimedRow, pairs
from ortune.core.capabilities import placed
from ortune.core.result import TableResult
from ortune.core.trial import Interval
from ortune.measurement.capabilities import capabilities
from ortune.measurement.machine import noise
from ortune.measurement.machine.noise import Advice
from ortune.measurement.timing import stats

_SHOWN = (
    *("model", "backend", "environment", "workload", "batch", "again", "p50_ns", "per_second"),
    "error",
)

PER_FRAME = "time per frame"
"""What an entry is of a row that has the user's frame around the model."""


@dataclass(frozen=True)
class Winner:
    """The fastest row of a batch.

    Attributes:
        row: Its index; None inside the noise.
    """

    workload: str
    batch: int
    row: int | None


@dataclass(frozen=True)
class SelfCheck:
    """The first row timed against itself.

    Attributes:
        row: The index of the second one.
        equal: Whether the ratio's interval holds 1.
    """

    row: int
    ratio: Interval
    equal: bool


@dataclass(frozen=True)
class NoiseVerdict:
    """Whether the machine was quiet enough.

    Attributes:
        rule: How that is judged.
    """

    too_noisy: bool
    rule: str
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Pipeline:
    """A model inside the user's frame: pre-processing, the engine, post-processing.

    Times and rates are None, and so are ratios, where a row failed.

    Attributes:
        row: Index of the row of whole frames.
        model_row: Index of the row of the calls that a frame makes of the engine, without it.
        frames_per_s: Whole frames.
        model_per_s: As many as the model alone would do.
        share: Of a frame's time, what the model alone takes, at 99 %.
        ratio: A frame's time over that of the first model's frame, at 99 %.
        model_ratio: The same of the model alone.
    """

    row: int
    model_row: int
    frames_per_s: float | None
    model_per_s: float | None
    share: Interval | None
    ratio: Interval | None
    model_ratio: Interval | None


@dataclass(frozen=True, repr=False)
class BenchResult(TableResult):
    """Models timed on backends side by side.

    Attributes:
        rows: What was measured of each contestant, raw nanoseconds included; see ``docs/cli.md``.
        ratios: Of each row's latency to that of the first row of its batch, at 99 %; None for one
            that failed.
        winner: Index of the fastest; None inside the noise, or with several batches.
        winners: The fastest of every batch.
        self_check: None when it was not asked for.
        machine: What the times hold for.
        versions: Of the runtimes where the first row ran.
        noise: Readings of the machine meanwhile.
        counts: How many rows came to what beside the first of their batch, in words.
        environments: Name -> versions of the runtimes there.
        pipelines: With a frame: what the models' speed is worth inside of it.
    """

    rows: tuple[Mapping[str, Any], ...]
    ratios: tuple[Interval | None, ...]
    winner: int | None
    winners: tuple[Winner, ...]
    self_check: SelfCheck | None
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, Any]
    judgement: NoiseVerdict
    counts: Mapping[str, int] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pipelines: tuple[Pipeline, ...] = ()

    def summary(self) -> Mapping[str, object]:
        """Return the fastest row of every batch, and whether the machine was quiet enough."""
        fastest = ["none" if one.row is None else self._name(one.row) for one in self.winners]
        return {
            "fastest": ", ".join(fastest),
            "rows": len(self.rows),
            "too noisy": self.judgement.too_noisy,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a row's key figures and its ratio."""
        return [
            {name: row.get(name) for name in _SHOWN} | {"ratio": ratio and ratio.value}
            for row, ratio in zip(self.rows, self.ratios, strict=True)
        ]

    def _name(self, index: int) -> str:
        row = self.rows[index]
        return f"{row['model']} on {placed(row)}"


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
