"""What a level costs the server: its statistics, CPU seconds and memory of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

_COMPUTE = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class ServerTimes:
    """The server's own statistics of a level, by its own clock: means of its requests.

    Attributes:
        answered: Requests that it counts as answered.
        failed: Those that it counts as failed.
        queue_ns: Mean time in the queue; None where it counted none.
        compute_ns: Mean time from there to the outputs.
        batch: Mean rows that were computed together.
    """

    answered: int
    failed: int
    queue_ns: float | None
    compute_ns: float | None
    batch: float | None


def between(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> ServerTimes | None:
    """Return what happened between two statistics of a model; None where there are none."""
    if before is None or after is None:
        return None
    with suppress(AttributeError, TypeError, ValueError):  # another server's may hold anything
        return _grown(before, after)
    return None


def _grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> ServerTimes:

    def grown(name: str, field: str) -> int:
        new, old = (one.get("inference_stats", {}).get(name, {}) for one in (after, before))
        return int(new.get(field, 0)) - int(old.get(field, 0))

    def count(name: str) -> int:
        return int(after.get(name, 0)) - int(before.get(name, 0))

    queued, computed = grown("queue", "count"), grown("compute_infer", "count")
    rows, runs = count("inference_count"), count("execution_count")
    return ServerTimes(
        answered=grown("success", "count"),
        failed=grown("fail", "count"),
        queue_ns=grown("queue", "ns") / queued if queued > 0 else None,
        compute_ns=sum(grown(one, "ns") for one in _COMPUTE) / computed if computed > 0 else None,
        batch=rows / runs if runs > 0 else None,
    )


@dataclass(frozen=True)
class ProcessUse:
    """What a process and all below it have taken so far.

    Attributes:
        cpu_s: CPU seconds, user and system, ended children included.
        rss: Bytes of resident memory now; pages that processes share count in each.
        processes: How many there are.
    """

    cpu_s: float
    rss: int
    processes: int


def of_process(pid: int) -> ProcessUse | None:
    """Read what a process takes; None where it is gone."""
    cpu_s, rss, count = 0.0, 0, 0
    with suppress(psutil.NoSuchProcess):
        for one in (root := psutil.Process(pid), *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                used = one.cpu_times()
                cpu_s += used.user + used.system + used.children_user + used.children_system
                rss += one.memory_info().rss
                count += 1
    return ProcessUse(cpu_s, rss, count) if count else None
