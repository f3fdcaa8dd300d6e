"""Tables of a GPU: levels, a search beside the best by hand, sizes of batches, a server, tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import interval, table

Results = Mapping[str, Any]


def levels(results: Results) -> str:
    """Return a table a model: every precision and way to call, at the level `all`."""
    if "levels" not in results:
        return ""
    parts = [describe_card(results)]
    for model, rows in results["levels"].items():
        base = rows[0]["typical_ns"]
        lines = [
            [
                row["precision"],
                {"cpu": "CPU", "all": "CUDA"}.get(row["way"], row["way"]),
                row["error"] or f"{row['typical_ns'] / 1e6:.2f}",
                "" if row["error"] else f"{base / row['typical_ns']:.1f}x",
                f"{row['device_ns'] / 1e6:.2f}" if row.get("device_ns") else "",
                f"{row['snr_db']:.0f}" if row.get("snr_db") is not None else "",
            ]
            for row in rows
            if row["way"] not in ("disabled", "basic", "extended")
        ]
        head = ["precision", "how", "a call, ms", "speed-up", "on the device, ms", "dB"]
        parts.append(f"**{model}**\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def races(results: Results) -> str:
    """Return a table a model that was searched: what was found beside the best by hand."""
    parts = []
    for model, step in results.items():
        if not isinstance(step, Mapping) or "race" not in step:
            continue
        race = step["race"]
        lines = [
            [
                label + " (best by hand)" * (label == race["best_by_hand"]),
                f"{row['median_ms']:.2f}",
                "" if label == "ortune" else interval(row["found_over_it"], 2),
                f"{row['snr_db']:.0f}" if row["snr_db"] is not None else "wrong",
            ]
            for label, row in race["rows"].items()
        ]
        head = ["contestant", "a call, ms", "found over it", "dB"]
        found = f"Found: {step['search']['best']}, after {step['search']['seconds']:.0f} s."
        card = results["gpus"][0]["name"]
        parts.append(f"**{model}**, {card}\n\n{found}\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def batches(results: Results) -> str:
    """Return what runs of changing sizes take beside runs of one size."""
    rows = results.get("batches", {})
    if not rows:
        return ""
    head = ["backend", *next(iter(rows.values()))]
    lines = [[f"`{name}`", *(f"{ms:.1f}" for ms in row.values())] for name, row in rows.items()]
    return f"{describe_card(results)}\n\n{table(head, lines)}"


def serving(results: Results) -> str:
    """Return a row for each setting of the server and level of load."""
    lines = [
        [
            setting,
            str(row["concurrency"]),
            f"{row['requests_per_s']:.0f}",
            f"{row['p50_ns'] / 1e6:.1f}",
            f"{row['p99_ns'] / 1e6:.1f}" if row["p99_ns"] else "",
            str(row["failed"]),
            f"{step['gpu_memory'] / 1e9:.1f}",
        ]
        for setting, step in results.get("serving", {}).items()
        if "rows" in step and "any size" not in setting
        for row in step["rows"]
    ]
    head = ["server", "callers", "requests/s", "p50, ms", "p99, ms", "failed", "GPU, GB"]
    return table(head, lines) if lines else ""


def tests(results: Results) -> str:
    """Return what pytest said of tests/gpu, its last line."""
    step = results["tests"]
    return f"{results['gpus'][0]['name']}, `pytest tests/gpu`: {step['said'][-1]}."


def describe_card(results: Results) -> str:
    """Return the card, its software and the CPUs beside it as a sentence."""
    card, driver, versions = results["gpus"][0], results["driver"], results["versions"]
    runtime = versions.get("onnxruntime-gpu", "")
    return (
        f"{card['name']}, driver {driver.get('driver')}, CUDA {driver.get('cuda')}, cuDNN "
        f"{driver.get('cudnn')}, onnxruntime-gpu {runtime}; CPU: {results['machine']['cpu']}, "
        f"{results['machine']['effective cpus']} CPUs."
    )
