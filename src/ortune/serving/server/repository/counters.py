"""What became of the requests to models: Triton's counters, also as Prometheus reads them."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psutil

from ortune.bundle.engine.batching import Batches, TimedAnswer
from ortune.bundle.engine.call import Call
from ortune.serving.protocol.refusals import RefusalKind

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why requests fail, in Triton's words: not let in or out of time, given up by the client, failed
while they were computed, and wrong."""
_REASON = {
    RefusalKind.UNAVAILABLE: "REJECTED",
    RefusalKind.TIMED_OUT: "REJECTED",
    RefusalKind.CANCELLED: "CANCELED",
    RefusalKind.INTERNAL: "BACKEND",
}
_DURATIONS = (
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
    *("cache_hit", "cache_miss"),
)
Durations: TypeAlias = Mapping[str, tuple[int, int]]
"""Name -> count and nanoseconds."""


@dataclass(eq=False, slots=True)
class Counters:
    """Counts of one version of one model; they go on when its file is exchanged.

    Only the event loop's thread writes them.

    Attributes:
        answered_ns: From the arrival of answered requests to their answer, all together.
        inferences: Rows of these requests.
        infer_ns: What they were computed, each by the time of its whole run.
        failed: Reason -> requests without an answer.
        failed_ns: From their arrival to their refusal, all together.
        last_ms: When the last one was answered, milliseconds since the epoch.
    """

    answered: int = 0
    answered_ns: int = 0
    inferences: int = 0
    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    failed_ns: int = 0
    last_ms: int = 0
    _calls: list[Call] = field(default_factory=list)
    _past: dict[int, Batches] = field(default_factory=dict)

    def count_answer(self, rows: int, began: int, answer: TimedAnswer, now: int) -> None:
        """Count an answer to a request of some rows, by `time.perf_counter_ns`."""
        self.answered += 1
        self.answered_ns += now - began
        self.inferences += rows
        self.queue_ns += answer.started_ns - answer.queued_ns
        self.infer_ns += answer.ended_ns - answer.started_ns
        self.output_ns += now - answer.ended_ns
        self.last_ms = time.time_ns() // 1_000_000

    def count_refusal(self, status: RefusalKind, ns: int, *, computed: bool = False) -> None:
        """Count a request without an answer after `ns`; `computed`: the model failed."""
        self.failed["BACKEND" if computed else _REASON.get(status, "OTHER")] += 1
        self.failed_ns += ns

    def add_call(self, call: Call) -> None:
        """Count the runs of a model too."""
        self._calls.append(call)

    def retire_call(self, call: Call) -> None:
        """Keep the runs of a model that runs no more."""
        self._calls.remove(call)
        self._past = _merge_batches([self._past, call.statistics.batches])

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return sum(call.statistics.depth for call in self._calls)

    @property
    def runs(self) -> Mapping[int, Batches]:
        """Rows -> runs of so many, those that failed too."""
        return _merge_batches([self._past, *(call.statistics.batches for call in self._calls)])

    @property
    def executions(self) -> int:
        """All runs."""
        return sum(runs.count for runs in self.runs.values())

    def list_durations(self) -> Durations:
        """Return counts and times by Triton's names."""
        count = self.answered
        return {
            "success": (count, self.answered_ns),
            "fail": (self.failed.total(), self.failed_ns),
            "queue": (count, self.queue_ns),
            "compute_input": (count, 0),
            "compute_infer": (count, self.infer_ns),
            "compute_output": (count, self.output_ns),
        }

    def build_statistics(self, name: str, version: str) -> dict[str, Any]:
        """Return the entry of ``model_stats``."""
        runs = self.runs

        def entries(durations: Durations, names: Sequence[str]) -> dict[str, Any]:
            pairs = {name: durations.get(name, (0, 0)) for name in names}
            return {name: {"count": count, "ns": ns} for name, (count, ns) in pairs.items()}

        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": sum(batches.count for batches in runs.values()),
            "inference_stats": entries(self.list_durations(), _DURATIONS),
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": {"count": batches.count, "ns": 0},
                    "compute_infer": {"count": batches.count, "ns": batches.compute_ns},
                    "compute_output": {"count": batches.count, "ns": 0},
                }
                for rows, batches in sorted(runs.items())
            ],
            "memory_usage": [],
            "response_stats": {},
        }


def _merge_batches(parts: Sequence[Mapping[int, Batches]]) -> dict[int, Batches]:
    """Add up runs of the same size."""
    merged: dict[int, Batches] = {}
    for part in parts:
        for rows, batches in part.items():
            total = merged.get(rows, Batches())
            merged[rows] = Batches(
                total.count + batches.count,
                total.requests + batches.requests,
                total.queue_ns + batches.queue_ns,
                total.compute_ns + batches.compute_ns,
            )
    return merged


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METRICS: Mapping[str, tuple[str, str, str]] = {
    "request_success": ("answered", "counter", "successful inference requests, all batch sizes"),
    "count": ("inferences", "counter", "inferences performed, rows of a batch one by one"),
    "exec_count": ("executions", "counter", "model executions performed, a batch as one"),
    "pending_request_count": ("waiting", "gauge", "requests that wait for execution"),
}
"""Metric of a model -> the attribute that it tells, its kind, and what it is the number of."""
_TIMES = {
    "request": ("success", "inference request"),
    "queue": ("queue", "inference queuing"),
    "compute_input": ("compute_input", "compute input"),
    "compute_infer": ("compute_infer", "compute inference"),
    "compute_output": ("compute_output", "compute output"),
}
"""Part of a metric's name -> the duration that it tells, and what it is."""


def metrics_text(models: Iterable[tuple[str, str, Counters]]) -> str:
    """Return the metrics of models and of this machine, as Prometheus reads them.

    They are those of one process: of several that share a port, each answers with its own.
    """
    counted = [(f'model="{name}",version="{at}"', counters) for name, at, counters in models]
    lines = list[str]()

    def add(
        name: str, description: str, samples: Iterable[tuple[str, float]], kind: str = "counter"
    ) -> None:
        lines.extend((f"# HELP {name} {description}", f"# TYPE {name} {kind}"))
        lines.extend(
            f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
            for labels, value in samples
        )

    for name, (attribute, kind, description) in _METRICS.items():
        samples = [(labels, getattr(counters, attribute)) for labels, counters in counted]
        add(f"nv_inference_{name}", f"Number of {description}", samples, kind)
    failures = [
        (f'{labels},reason="{why}"', counters.failed[why])
        for labels, counters in counted
        for why in REASONS
    ]
    description = "Number of failed inference requests, all batch sizes"
    add("nv_inference_request_failure", description, failures)
    for part, (key, description) in _TIMES.items():
        times = [
            (labels, counters.list_durations()[key][1] // 1000) for labels, counters in counted
        ]
        name = f"nv_inference_{part}_duration_us"
        add(name, f"Cumulative {description} duration in microseconds", times)
    memory = psutil.virtual_memory()
    for name, description, number in (
        ("utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent(None) / 100),
        ("memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        ("memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used),
    ):
        add(f"nv_cpu_{name}", description, [("", number)], "gauge")
    return "".join(f"{line}\n" for line in lines)
