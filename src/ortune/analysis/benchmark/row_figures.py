"""The figures of a row of a benchmark, as its JSON has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortune.analysis.benchmark.interleave import TimedRow
from ortune.graph.io import file
from ortune.measurement.arrivals.lanes import percentile
from ortune.measurement.machine.counters import Energy

_WITHOUT_PAUSE = ("latency", "shapes")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}


def describe_row(
    timed_row: TimedRow, digest: str, energy: Energy, size: int | None = None
) -> dict[str, Any]:
    """Return a row's JSON.

    Args:
        digest: The model's, weights included.
        size: Bytes of a file that is no model; counted without it.
    """
    who, latency = timed_row.contestant, timed_row.latency_ns
    workload = who.workload
    samples, runs = max(1, workload.batch), timed_row.runs
    reported = workload.results(latency, timed_row.details) if timed_row.details else {}
    # Entries that are measurements of their own: one of each half of a whole block.
    apart = latency
    if workload.whole:
        apart = [b.latency_ns[k] for turn in timed_row.turns for b in turn for k in (0, -1)]
    # Samples a second: as the workload counts them, else those of one caller without a pause.
    rate = reported.get("throughput_per_s")
    if rate is None and reported.get("achieved_rate") is not None:
        rate = float(reported["achieved_rate"]) * samples
    if rate is None and latency and workload.name() in _WITHOUT_PAUSE:
        rate = samples * 1e9 / float(np.mean(latency))
    joules: dict[str, Any] = {"per_run": None, "why": "; ".join(energy.why) or "no run was timed"}
    if timed_row.joules:
        joules = {
            "per_run": {n: used / runs if runs else None for n, used in timed_row.joules.items()}
        }
    # Latency without the copies, and the GPUs at work; nothing where all is in one memory.
    device: dict[str, Any] = {}
    if timed_row.compute_ns or timed_row.gpus:
        device = {
            "device_ns": _compute_median(timed_row.compute_ns),
            "compute_ns": timed_row.compute_ns,
        }
        device["gpus"] = timed_row.gpus

    def worst(name: str) -> Any:
        """Return the most of all sets, as a limit must hold for it."""
        seen = (footprint[name] for footprint in timed_row.footprints)
        return max((value for value in seen if value is not None), default=None)

    middle = _compute_median(latency)
    return {
        "model": who.title or str(who.model),
        "digest": digest,
        "backend": str(who.backend),
        "unverified": who.backend.unverified,
        "environment": who.environment,
        "workload": str(workload),
        "batch": workload.batch,
        "again": who.again,
        "error": timed_row.error or None,
        "size": file.count_file_bytes(who.model) if size is None else size,
        "placement": dict(timed_row.placement),
        "load_ns": timed_row.load_ns,
        "first_ns": timed_row.first_ns,
        **({"caches": timed_row.caches} if timed_row.caches else {}),
        "latency_ns": latency,
        **summarize_latency(apart),
        "per_second": rate,
        "per_sample_ns": None if middle is None else middle / samples,
        "measure": workload.measure,
        "peak_rss": worst("peak"),
        **{name: worst(name) for name in ("rss", "uss")},
        "samples_bytes": worst("samples"),
        "cpu_ns": timed_row.cpu_ns / runs if runs else None,
        "spin_ns": _compute_median(timed_row.spin_ns),
        "joules": joules,
        **device,
        "reported": reported,
        "turns": [[list(burst.latency_ns) for burst in turn] for turn in timed_row.turns],
        "waited": [[list(burst.waited) for burst in turn] for turn in timed_row.turns],
        "neighbours": [[burst.neighbours for burst in turn] for turn in timed_row.turns],
        "runs_each": [turn[0].runs_each if turn else 1 for turn in timed_row.turns],
        "alike": all(burst.alike for turn in timed_row.turns for burst in turn),
    }


def _compute_median(values: Sequence[int]) -> float | None:
    return float(np.median(values)) if values else None


def summarize_latency(latency: Sequence[int]) -> dict[str, Any]:
    """Return the statistics of entries in ns; None where they support no such figure."""
    if not latency:
        return {}
    values = np.asarray(latency, np.float64)
    return {
        "entries": len(values),
        "mean_ns": float(values.mean()),
        "sd_ns": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min_ns": int(values.min()),
        "max_ns": int(values.max()),
        **{f"{name}_ns": percentile(latency, p) for name, p in PERCENTILES.items()},
    }
