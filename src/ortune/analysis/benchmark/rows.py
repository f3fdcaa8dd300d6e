"""A timed row as `bench` reports it: all samples raw, every figure computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortune.analysis.benchmark.interleave import TimedRow
from ortune.load_generation.summaries import percentile
from ortune.measurement.machine.energy import Energy
from ortune.model.io import file

_WITHOUT_PAUSE = ("latency", "shapes")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}


def row(one: TimedRow, digest: str, energy: Energy, size: int | None = None) -> dict[str, Any]:
    """Return a row's JSON.

    Args:
        digest: The model's, weights included.
        size: Bytes of a file that is no model; counted without it.
    """
    who = one.contestant
    samples = max(1, who.workload.batch)
    latency = one.latency_ns
    reported = who.workload.results(latency, one.details) if one.details else {}
    return {
        "model": str(who.model),
        "digest": digest,
        "backend": str(who.backend),
        "unverified": who.backend.unverified,
        "environment": who.environment,
        "workload": str(who.workload),
        "batch": who.workload.batch,
        "again": who.again,
        "error": one.error or None,
        "size": file.size(who.model) if size is None else size,
        "placement": dict(one.placement),
        "load_ns": one.load_ns,
        "first_ns": one.first_ns,
        **({"caches": one.caches} if one.caches else {}),
        "latency_ns": latency,
        **times(_told_apart(one)),
        "per_second": _rate(one, reported, samples),
        "per_sample_ns": float(np.median(latency)) / samples if latency else None,
        "measure": who.workload.measure,
        **_memory(one.footprints),
        "cpu_ns": _per(one.cpu_ns, one.runs),
        "spin_ns": float(np.median(one.spin_ns)) if one.spin_ns else None,
        "joules": _joules(one, energy),
        **_device(one),
        "reported": reported,
        "turns": [[list(burst.latency_ns) for burst in turn] for turn in one.turns],
        "waited": [[list(burst.waited) for burst in turn] for turn in one.turns],
        "runs_each": [turn[0].runs_each if turn else 1 for turn in one.turns],
        "alike": all(burst.alike for turn in one.turns for burst in turn),
    }


def times(latency: Sequence[int]) -> dict[str, Any]:
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


def _rate(one: TimedRow, reported: Mapping[str, Any], samples: int) -> float | None:
    """Samples a second: as the workload counts them, else those of one caller without a pause."""
    if reported.get("throughput_per_s") is not None:
        return float(reported["throughput_per_s"])  # counts samples already
    if reported.get("achieved_rate") is not None:
        return float(reported["achieved_rate"]) * samples
    latency = one.latency_ns
    if not latency or one.contestant.workload.name() not in _WITHOUT_PAUSE:
        return None
    return samples * 1e9 / float(np.mean(latency))


def _told_apart(one: TimedRow) -> list[int]:
    """Return entries that are measurements of their own: one of each half of a whole block."""
    if not one.contestant.workload.whole:
        return one.latency_ns
    blocks = (block.latency_ns for turn in one.turns for block in turn)
    return [ns for entries in blocks for ns in (entries[0], entries[-1])]


def _memory(seen: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The worst of the sets, as a limit must hold for it."""
    uss = [one["uss"] for one in seen if one["uss"] is not None]
    return {
        "peak_rss": max((one["peak"] for one in seen), default=None),
        "rss": max((one["rss"] for one in seen), default=None),
        "uss": max(uss, default=None),
        "samples_bytes": max((one["samples"] for one in seen), default=None),
    }


def _joules(one: TimedRow, energy: Energy) -> dict[str, Any]:
    if not one.joules:
        return {"per_run": None, "why": "; ".join(energy.why) or "no run was timed"}
    return {"per_run": {name: _per(used, one.runs) for name, used in one.joules.items()}}


def _device(one: TimedRow) -> dict[str, Any]:
    """Latency without the copies, and the GPUs at work; nothing where all is in one memory."""
    if not one.compute_ns and not one.gpus:
        return {}
    middle = float(np.median(one.compute_ns)) if one.compute_ns else None
    return {"device_ns": middle, "compute_ns": one.compute_ns, "gpus": one.gpus}


def _per(total: float, count: int) -> float | None:
    return total / count if count else None
