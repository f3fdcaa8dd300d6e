"""What `bench` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortune.core.capabilities import placed
from ortune.core.result import TableResult
from ortune.core.trial import Interval
from ortune.measurement.machine.noise import Advice

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
