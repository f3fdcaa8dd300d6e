"""Counters as Prometheus reads them, under Triton's names.

They are those of one process: of several that share a port, each answers with its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import psutil

from ortune.server.repository.counters import REASONS
from ortune.server.repository.served import Served

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMES = {
    "request": ("success", "Cumulative inference request duration in microseconds"),
    "queue": ("queue", "Cumulative inference queuing duration in microseconds"),
    "compute_input": ("compute_input", "Cumulative compute input duration in microseconds"),
    "compute_infer": ("compute_infer", "Cumulative compute inference duration in microseconds"),
    "compute_output": ("compute_output", "Cumulative compute output duration in microseconds"),
}
"""Part of a metric's name -> the duration that it tells, and what it is."""


def text(served: Iterable[Served]) -> str:
    """Return all metrics of some models and of this machine."""
    return "".join(f"{line}\n" for line in (*_models(list(served)), *_machine()))


def _models(served: list[Served]) -> Iterator[str]:
    labels = [f'model="{one.name}",version="{one.version}"' for one in served]
    counters = [one.counters for one in served]
    name = "nv_inference_request_success"
    yield from _head(name, "Number of successful inference requests, all batch sizes")
    yield from (
        f"{name}{{{who}}} {one.answered}" for who, one in zip(labels, counters, strict=True)
    )
    name = "nv_inference_request_failure"
    yield from _head(name, "Number of failed inference requests, all batch sizes")
    for who, one in zip(labels, counters, strict=True):
        yield from (f'{name}{{{who},reason="{why}"}} {one.failed[why]}' for why in REASONS)
    name = "nv_inference_count"
    yield from _head(name, "Number of inferences performed, rows of a batch one by one")
    yield from (f"{name}{{{w}}} {one.inferences}" for w, one in zip(labels, counters, strict=True))
    name = "nv_inference_exec_count"
    yield from _head(name, "Number of model executions performed, a batch as one")
    for who, one in zip(labels, counters, strict=True):
        yield f"{name}{{{who}}} {sum(runs.count for runs in one.runs.values())}"
    for part, (key, what) in _TIMES.items():
        name = f"nv_inference_{part}_duration_us"
        yield from _head(name, what)
        for who, one in zip(labels, counters, strict=True):
            yield f"{name}{{{who}}} {one.durations()[key][1] // 1000}"
    name = "nv_inference_pending_request_count"
    yield from _head(name, "Number of requests that wait for execution", "gauge")
    yield from (f"{name}{{{w}}} {one.waiting}" for w, one in zip(labels, counters, strict=True))


def _machine() -> Iterator[str]:
    memory = psutil.virtual_memory()
    for name, what, value in (
        ("utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent(None) / 100),
        ("memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        ("memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used),
    ):
        yield from _head(f"nv_cpu_{name}", what, "gauge")
        yield f"nv_cpu_{name} {value}"


def _head(name: str, what: str, kind: str = "counter") -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
