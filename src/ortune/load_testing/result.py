"""What `loadtest` returns: rows that `compare` and `cost` read too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ortune.analysis.benchmark.result import NoiseVerdict
from ortune.analysis.benchmark.rows import times
from ortune.core.result import TableResult
from ortune.load_generation.summaries import percentile
from ortune.load_testing.check import CheckedAnswers
from ortune.load_testing.level import LIMIT, Level
from ortune.load_testing.sweep import Repeated

MEASURE = "latency from the intended start"
_BLOCKS = 12
"""Parts of a repeat: their spread is the error of its mean."""
_SHOWN = ("workload", "requests_per_s", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "failed", "error")


@dataclass(frozen=True)
class RowOf:
    """What all rows of a load test share.

    Attributes:
        model: File or name of the model.
        backend: What runs it.
        batch: Samples of a request.
        digest: Of the file; None where it is not known.
        size: Bytes of the file; None where it is not known.
    """

    model: str
    backend: str
    protocol: str
    batch: int
    digest: str | None = None
    size: int | None = None


def row(found: Repeated, of: RowOf) -> dict[str, Any]:
    """Return a level's row: the fields of `bench` that it has, and its own."""
    latency = found.latency_ns
    failed = sum(found.errors.values())
    words = ", ".join(f"{word} ({count:,})" for word, count in found.errors.items())
    late = [ns for one in found.levels for ns in one.late_ns]
    return {
        "model": of.model,
        "digest": of.digest,
        "backend": of.backend,
        "workload": f"{of.protocol}, {found.load}",
        "batch": 0 if of.batch == 1 else of.batch,
        "error": None if latency else f"no request was answered: {words or 'none was sent'}",
        "size": of.size,
        "latency_ns": list(latency),
        **times(latency),
        "p95_ns": percentile(latency, 95),
        "requests_per_s": found.rate,
        "per_second": found.rate * of.batch,
        "offered_per_s": found.offered if found.load.open else None,
        "concurrency": found.load.concurrency or None,
        "keeps_up": found.keeps_up,
        "measure": MEASURE,
        "answered": found.answered,
        "failed": failed,
        "errors": dict(found.errors),
        "examples": {word: text for one in found.levels for word, text in one.examples.items()},
        "late_p99_ns": percentile(late, 99),
        "server": _server(found.levels),
        "client": {
            "busy": found.client_busy,
            "limits": found.client_limits,
            "limit": LIMIT,
            "cpu_ns": _per(sum(one.client_cpu_s for one in found.levels), found),
        },
        "peak_rss": max((one.server_rss for one in found.levels if one.server_rss), default=None),
        "repeats": [
            {"requests_per_s": one.rate, "p50_ns": one.percentile(50)} for one in found.levels
        ],
        "turns": [_blocks(one.latency_ns) for one in found.levels if one.latency_ns],
        "runs_each": [1 for one in found.levels if one.latency_ns],
        "alike": True,
    }


def _blocks(latency: Sequence[int]) -> list[list[int]]:
    count = min(_BLOCKS, len(latency))
    edges = [k * len(latency) // count for k in range(count + 1)]
    return [list(latency[low:high]) for low, high in pairwise(edges)]


def _per(seconds: float | None, found: Repeated) -> float | None:
    requests = sum(one.requests for one in found.levels)
    return None if seconds is None or not requests else seconds * 1e9 / requests


def _server(levels: Sequence[Level]) -> dict[str, Any]:
    """Return the server's own times, means over the requests that it counted."""
    every = [one.server for one in levels if one.server is not None]
    answered = sum(one.answered for one in every)

    def mean(name: str) -> float | None:
        known = [(getattr(one, name), one.answered) for one in every]
        known = [(value, weight) for value, weight in known if value is not None and weight]
        total = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / total if total else None

    spent = [one.server_cpu_s for one in levels if one.server_cpu_s is not None]
    requests = sum(one.requests for one in levels)
    return {
        "answered": answered if every else None,
        "queue_ns": mean("queue_ns"),
        "compute_ns": mean("compute_ns"),
        "batch": mean("batch"),
        "cpu_ns": sum(spent) * 1e9 / requests if spent and requests else None,
    }


@dataclass(frozen=True, repr=False)
class LoadTestResult(TableResult):
    """A server under one level of load after another.

    Attributes:
        target: ServerUrl, or the file that was served.
        model: What was called, on the server.
        protocol: ``http`` or ``grpc``.
        rows: A level each, raw nanoseconds included; see ``docs/loadtest.md``.
        knee: Place of the level at the knee of the curve; None with one level.
        most: Place of the level with most right answers a second.
        kept: Place of the level with most of them that keeps the limit.
        slo: The limit; empty without one.
        processes: Of the server that was started here; 0 for one that ran.
        clients: Client processes.
        clock: What a latency is.
        knee_rule: What the knee is.
        checked: Answers compared with the model's own; None where none were.
        notes: What the reader must know.
        machine: Where the client ran.
        noise: Readings of that machine meanwhile.
    """

    target: str
    model: str
    protocol: str
    rows: tuple[Mapping[str, Any], ...]
    knee: int | None
    most: int | None
    kept: int | None
    slo: str
    processes: int
    clients: int
    clock: str
    knee_rule: str
    checked: CheckedAnswers | None
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, Any]
    judgement: NoiseVerdict

    def summary(self) -> Mapping[str, object]:
        """Return the levels that matter."""
        return {
            "model": f"{self.model} over {self.protocol}",
            "most": self._named(self.most),
            "knee": self._named(self.knee),
            **({self.slo: self._named(self.kept)} if self.slo else {}),
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a level's key figures."""
        return [{name: one.get(name) for name in _SHOWN} for one in self.rows]

    def _named(self, place: int | None) -> str:
        if place is None:
            return "none"
        one = self.rows[place]
        return f"{one['workload']}: {one['requests_per_s']:.4g} requests/s"
