"""What `compare` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortune.core.result import TableResult
from ortune.core.trial import Interval


@dataclass(frozen=True)
class ComparedRow:
    """A row of the reference and the same one of another run.

    Attributes:
        name: For a person; of the other row what differs.
        rows: Index in each file.
        same_model: By its digest; None when one is not known.
        how: Whether latencies are compared directly, or relative to which row.
        judged: Whether the latency is.
        error: Why each failed, if it did.
        latency: Ratio of the other to the reference; None when one failed.
        p99: Ratio, like `memory`, `size` and `load`; None when one is not known.
        regressions: Metrics over their thresholds, or ``error``.
    """

    name: str
    model: str
    backend: str
    workload: str
    batch: int
    rows: tuple[int, int]
    same_model: bool | None
    how: str
    judged: bool
    error: tuple[str | None, str | None]
    latency: Interval | None
    p99: float | None
    memory: float | None
    size: float | None
    load: float | None
    regressions: tuple[str, ...]
    verdict: str

    def ratio(self, metric: str) -> float | None:
        """Return a ratio by the metric's name."""
        found: float | None = getattr(self, metric)
        return found


@dataclass(frozen=True)
class RunDifference:
    """A field of the machine or the versions that differs between two runs."""

    where: str
    field: str
    reference: str | None
    other: str | None


@dataclass(frozen=True)
class ComparedRun:
    """A run against the reference.

    Attributes:
        too_noisy: Files that were measured on a machine too noisy for a verdict.
        only_reference: Rows that the other one lacks.
        only_other: Rows that the reference lacks.
    """

    reference: str
    other: str
    same_machine: bool
    too_noisy: tuple[str, ...]
    differs: tuple[RunDifference, ...]
    rows: tuple[ComparedRow, ...]
    only_reference: tuple[str, ...]
    only_other: tuple[str, ...]


@dataclass(frozen=True)
class ComparedFile:
    """A saved run: its number of rows, machine and versions."""

    path: Path
    rows: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class CompareResult(TableResult):
    """Saved runs against the first of them.

    Attributes:
        thresholds: Metric -> share by which it may grow.
        comparisons: One for every file after the first.
        regressions: How many rows regressed.
    """

    headline = ("regressions", "thresholds")

    thresholds: Mapping[str, float]
    files: tuple[ComparedFile, ...]
    comparisons: tuple[ComparedRun, ...]
    regressions: int

    @property
    def rows(self) -> tuple[ComparedRow, ...]:
        """The rows of all comparisons."""
        return tuple(row for one in self.comparisons for row in one.rows)
