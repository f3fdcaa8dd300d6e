"""Tables of serving: beside the peers, over the engine, and what befalls a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import interval, table

Results = Mapping[str, Any]
_SIZES = {"small": "1 kB", "big": "602 kB"}


def peers(results: Results) -> str:
    """Return a row a peer, form and size: server CPU time per request first."""
    cells: dict[tuple[str, str, str], dict[int, Results]] = {}
    for row in results["rows"]:
        key = row["peer"], row["form"], row["size"]
        cells.setdefault(key, {})[row["concurrency"]] = row
    every = sorted({row["concurrency"] for row in results["rows"]})
    levels = list(dict.fromkeys((every[0], every[-1])))
    rows = []
    for (peer, form, size), found in cells.items():
        cpu = " / ".join(_whole(found, level, "cpu_us") for level in levels)
        ratio = " / ".join(_ratio(found.get(level, {})) for level in levels)
        memory = max(row["memory_mb"] for row in found.values())
        rows.append([peer, form, _SIZES[size], cpu, ratio, f"{memory:.0f}"])
    at = " / ".join(map(str, levels))
    head = ["server", "form", "size", f"server CPU, us a request, at {at} in flight"]
    head += ["ortune's over it", "MB"]
    said = [f"{name} did not run: {why.splitlines()[-1]}" for name, why in _failed(results)]
    return "\n\n".join([_where(results), table(head, rows), *said])


def overhead(results: Results) -> str:
    """Return what a request costs over the engine's own call."""
    rows = [
        [row["form"], _SIZES[row["size"]], f"{row['engine_ns'] / 1e6:.3f}",
         interval([row["extra_ns"][k] / 1e6 for k in ("value", "low", "high")]),
         f"{row['limit_ns'] / 1e6:g}" if row["limit_ns"] else ""]
        for row in results["rows"]
    ]  # fmt: skip
    head = ["form", "size", "engine, ms", "the server adds, ms", "limit, ms"]
    return f"{_where(results)}\n\n{table(head, rows)}"


def pinned(results: Results) -> str:
    """Return what is left of the engine's own loop."""
    rows = [
        [row["model"], row["max batch"], row["form"], f"{row['own_per_second']:.1f}",
         f"{row['served_per_second']:.1f}", interval(row["share"])]
        for row in results["rows"]
    ]  # fmt: skip
    head = ["model", "largest batch", "form", "engine's loop, rows a second", "served", "share"]
    return f"{_where(results)}\n\n{table(head, rows)}"


def soak(results: Results) -> str:
    """Return a row a phase."""
    rows = [
        [name, *_befell(row), "yes" if row["within"] else "**no**"]
        for name, row in results["phases"].items()
    ]
    head = ["phase", "answered", "otherwise", "ms", "more", "meets its limits"]
    return f"{_where(results)}\n\n{table(head, rows)}"


def hostile(results: Results) -> str:
    """Return a row a kind of hostile client, and what the end with all of them took."""
    rows = [
        [row["front"], row["kind"], f"{max(row['alone_ms']):.1f}", f"{max(row['beside_ms']):.1f}",
         f"{row['ratio']:.2f}", f"{row['peak_mb'] - row['first_mb']:.0f}",
         "yes" if row["within"] else "**no**"]
        for row in results["rows"]
    ]  # fmt: skip
    last = results["rows"][-1]
    errors = sum(sum(row["errors"].values()) for row in results["rows"])
    ended = f"The normal clients got {errors} errors. With all hostile clients connected, "
    ended += f"SIGTERM took {last['seconds']:.1f} s, of which `--drain` is {last['drain']:.0f}."
    head = ["protocol", "hostile client", "p99 of others without it, ms", "with it, ms",
            "largest ratio", "server's memory grows by, MB", "as required"]  # fmt: skip
    return f"{_where(results)}\n\n{table(head, rows)}\n\n{ended}"


def _befell(row: Results) -> list[str]:
    errors = row.get("errors", row.get("answers", {}))
    said = ", ".join(f"{count:,} {status}" for status, count in errors.items()) or "none"
    if "p50_ms" in row:
        times = f"p50 {row['p50_ms']:.1f}, p99 {row['p99_ms']:.1f}"
    else:
        named = {k: v for k, v in row.items() if k.endswith("_ms")}
        times = ", ".join(f"{name.removesuffix('_ms')} {ms:.2f}" for name, ms in named.items())
    more = []
    if "rate" in row:
        more.append(f"{row['rate']:.0f} a second")
    if "grown" in row:
        more.append(f"memory {100 * row['grown']:+.1f} %")
    if "exit" in row:
        more.append(f"exit {row['exit']} after {row['seconds']:.1f} s")
    if "limit_ms" in row:
        more.append(f"limit {row['limit_ms']:.0f} ms")
    if "files" in row:
        more.append(f"{row['files']} files")
    answered = f"{row['answered']:,}" if "answered" in row else ""
    return [answered, said, times, ", ".join(more)]


def _whole(found: Mapping[int, Results], level: int, name: str) -> str:
    value = found.get(level, {}).get(name)
    return "-" if value is None else f"{value:,.0f}"


def _ratio(row: Results) -> str:
    return f"{row['ratio']['value']:.2f}" if "ratio" in row else "-"


def _failed(results: Results) -> list[tuple[str, str]]:
    return list(results.get("failed", {}).items())


def _where(results: Results) -> str:
    """Say on what was measured."""
    about, versions = results["machine"], results["versions"]
    names = ("onnxruntime", "uvicorn", "grpcio", "kserve", "mlserver", "litserve", "ray")
    known = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    return f"{about['cpu']}, {about['effective cpus']} CPUs; {known}."
