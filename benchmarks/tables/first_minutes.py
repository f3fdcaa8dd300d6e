"""Tables of what an installation takes, where it runs, and of demos measured again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import interval, table, where

Results = Mapping[str, Any]


def installed(results: Results) -> str:
    """Return sizes on disk and the time to import."""
    bare = results["cpu_s"]["python"]
    rows = [
        ["wheel, the demo's model and data included", _megabytes(results["wheel"])],
        ["installed, with all that it needs", _megabytes(results["alone"]["bytes"])],
        ["the same with `[openvino]`", _megabytes(results["with openvino"]["bytes"])],
    ]
    for name, seconds in results["cpu_s"].items():
        if name != "python":
            rows.append([f"`{name}`", f"{1000 * (seconds - bare):.0f} ms"])
    note = f"Times are CPU time beyond that of Python itself, {1000 * bare:.0f} ms."
    return f"{table(['what it takes', ''], rows)}\n\n{note}"


def pythons(results: Results) -> str:
    """Return on which CPythons the wheel's demo and the unit tests ran."""
    rows = [
        [
            one["python"] + minor.removeprefix(minor.partition(" ")[0]),
            _demo(one["demo"]),
            _newest(one.get("newest")),
            f"{one['unit tests']['passed']:,} passed"
            + f", {len(one['failed'])} failed" * bool(one["failed"]),
        ]
        for minor, one in results.items()
    ]
    head = ["CPython", "demo of the wheel alone, CPU provider", "on the newest packages"]
    return table([*head, "unit tests"], rows)


def users(results: Results) -> str:
    """Return how long each kind of user takes, without the installation."""
    found = results["users"]
    versions = sorted({version for runs in found.values() for version in runs})
    rows = [
        [user, *(f"{sum(runs[v]):.0f} s" if v in runs else "" for v in versions)]
        for user, runs in found.items()
    ]
    return table(["seconds of all commands", *(f"Python {v}" for v in versions)], rows)


def demos(results: Results) -> str:
    """Return every demo that claims something with what was measured again behind it."""
    rows = []
    for run in results["runs"]:
        kind = run["neighbour"]
        if kind == "two on one core" and not run["improved"]:
            continue
        beside = kind if kind and kind != "spin" else "a busy neighbour" if kind else "nobody"
        claim = interval(run["speedup"], 2) if run["improved"] else "none"
        ends = run["predicted"] or {}
        predicted = f"{ends['low']:.3f}-{ends['high']:.3f}" if run["improved"] else ""
        rows.append([beside, f"{run['seconds']:.0f} s", claim, run["verdict"], predicted,
                     run["again"]])  # fmt: skip
    head = ["beside", "took", "speed-up claimed", "accuracy", "ratio predicted", "measured again"]
    count = f"{results['outside']} of {results['claims']} claims fell outside their range."
    if shared := results.get("on one core"):
        count += (
            f" Of {shared} demos that shared one core with two neighbours "
            f"{results['claims on one core']} claimed something, "
            f"{results['claimed too much on one core']} more than is so on that core alone."
        )
    return f"{where(results)} {count}\n\n{table(head, rows)}"


def _demo(found: Results | None) -> str:
    return "" if found is None else f"{interval(found['speedup'], 2)}, {found['seconds']} s"


def _newest(found: Results | None) -> str:
    if found is None:
        return ""
    return f"{_demo(found)}; onnxruntime {found['packages']['onnxruntime']}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size < 1e7 else f"{size / 1e6:,.0f} MB"
