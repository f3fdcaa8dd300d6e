"""What `bench` shows: the figures that decide first, all of them with ``--wide``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.cli.terminal import output
from ortune.cli.terminal.bench_sentences import sentences
from ortune.cli.terminal.figures import figure, interval, megabytes, milliseconds, size
from ortune.core.capabilities import HERE

if TYPE_CHECKING:
    from ortune.analysis.benchmark.result import BenchResult

_MOST_NODES = 10
_DROPPED = ("p90 ms>", "CPU ms>", "size>", "peak MB>", "runs/s>", "samples/s>")
"""Columns that go first where a terminal is narrow; ``--wide`` shows all."""
_GAP = 2

Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]


def show(found: BenchResult, *, wide: bool) -> None:
    """Print the rows, then what follows from them."""
    rows = [{**row, "ratio": r} for row, r in zip(found.rows, found.ratios, strict=True)]
    names, same = _names(rows)
    if same:
        output.say(", ".join(same))
    columns = [*names, *_main(rows)]
    kept = columns if wide else _fitting(columns, rows)
    _table((*kept, ("", _error)), rows)
    if left := [name.rstrip(">") for name, _ in columns if name not in dict(kept)]:
        output.say(f"left out, the terminal is narrow: {', '.join(left)} (--wide)")
    if wide:
        _table((*names, *_LATENCY), rows, "latency, ms, over all samples of all processes")
        _table(
            (*names, *_start(rows)),
            rows,
            "start in a fresh process, ms; the runtime's import included",
        )
        _table((*names, *_MEMORY), rows, "memory")
        _table((*names, *_COST), rows, "cost of a run")
        gpus = [{**row, **gpu} for row in rows for gpu in row.get("gpus", ())[-1:]]
        if gpus:
            _table((*names, *_GPU), gpus, "the GPU directly after computing")
        for why in dict.fromkeys(row["joules"].get("why") for row in rows):
            if why:
                output.say(f"energy is not measured: {why}")
    _reported(names, rows)
    for row in rows:
        _shapes(row)
        _nodes(row)
    for line in sentences(found, rows):
        output.say(line)


def _table(columns: Sequence[Column], rows: Sequence[Row], title: str = "") -> None:
    cells = [[write(row) for _, write in columns] for row in rows]
    kept = [k for k, (name, _) in enumerate(columns) if name or any(line[k] for line in cells)]
    output.table([columns[k][0] for k in kept], [[line[k] for k in kept] for line in cells], title)


def _fitting(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave out what decides least until the table fits the terminal."""
    kept = list(columns)
    for name in _DROPPED:
        widths = [max(len(title), *(len(write(row)) for row in rows)) for title, write in kept]
        if sum(widths) + _GAP * len(widths) <= output.console().width:
            break
        kept = [one for one in kept if one[0] != name]
    return kept


def _names(rows: Sequence[Row]) -> tuple[list[Column], list[str]]:
    """Return the columns that tell rows apart, and what all rows share in words."""
    columns: list[Column] = []
    same: list[str] = []
    every: tuple[Column, ...] = (
        ("model", lambda row: Path(row["model"]).name),
        ("backend", _backend),
        ("environment", lambda row: row.get("environment", HERE)),
        ("workload", lambda row: _kind(row["workload"])),
        ("batch>", lambda row: str(row["batch"]) if row["batch"] else "as it comes"),
    )
    for name, write in every:
        values = list(dict.fromkeys(write(row) for row in rows))
        if len(values) > 1 or name == "backend":
            columns.append((name, write))
        elif values[0] not in ("latency", "as it comes", HERE):
            same.append(f"{name.rstrip('>')} {values[0]}")
    return columns, same


def _kind(workload: str) -> str:
    """Drop the batch from a workload's spelling: it has a column of its own."""
    name, _, fields = workload.rstrip(")").partition("(")
    left = [one for one in fields.split(", ") if one and not one.startswith("batch=")]
    return f"{name}({', '.join(left)})" if left else name


def _main(rows: Sequence[Row]) -> list[Column]:
    rate = "samples/s>" if any(row["batch"] for row in rows) else "runs/s>"
    columns: list[Column] = [
        ("ms>", _ms("typical_ns")),
        ("p90 ms>", _ms("p90_ns")),
        (rate, lambda row: figure(row.get("per_second"))),
        ("CPU ms>", _ms("cpu_ns")),
        ("peak MB>", lambda row: megabytes(row.get("peak_rss"))),
    ]
    if any(row.get("device_ns") for row in rows):
        columns.insert(1, ("on the device ms>", _ms("device_ns")))
    if len({row["size"] for row in rows}) > 1:
        columns.append(("size>", lambda row: size(row["size"])))
    if len(rows) > 1:
        columns.append(("ratio [99 %]>", lambda row: interval(row["ratio"])))
    return columns


def _backend(row: Row) -> str:
    again = " (again)" if row["again"] else ""
    return f"{row['backend']}{again}{' (unverified)' if row.get('unverified') else ''}"


def _ms(key: str) -> Callable[[Row], str]:
    return lambda row: milliseconds(row.get(key))


def _middle(key: str) -> Callable[[Row], str]:
    """Of a provider that builds engines there is no one middle."""
    return lambda row: milliseconds(
        median(row[key]) if row[key] and not row.get("caches") else None
    )


def _of_cache(key: str, cache: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        pairs = zip(row[key], row.get("caches", ()), strict=False)
        found = [ns for ns, one in pairs if one == cache]
        return milliseconds(median(found) if found else None)

    return write


def _error(row: Row) -> str:
    return row["error"] or ""


def _energy(row: Row) -> str:
    used = row["joules"]["per_run"]
    if not used:
        return "not measured"
    return ", ".join(f"{name} {1000 * joules:.3g} mJ" for name, joules in used.items())


def _arena(row: Row, key: str) -> float | None:
    found = (row["allocated"] or {}).get("arena")
    return found[key] if found else None


_LATENCY: tuple[Column, ...] = (
    ("entries>", lambda row: str(row.get("entries", 0))),
    ("mean>", _ms("mean_ns")),
    ("sd>", _ms("sd_ns")),
    ("min>", _ms("min_ns")),
    ("p50>", _ms("p50_ns")),
    ("p90>", _ms("p90_ns")),
    ("p99>", _ms("p99_ns")),
    ("p99.9>", _ms("p999_ns")),
    ("max>", _ms("max_ns")),
)


def _start(rows: Sequence[Row]) -> list[Column]:
    """Where a provider builds engines, the process that built and those that did not, apart."""
    runtime: Column = (
        "of which runtime>",
        lambda row: milliseconds(row["runtime"]["load_ns"]),
    )
    plain = [("session>", _middle("load_ns")), runtime, ("first inference>", _middle("first_ns"))]
    if not any(row.get("caches") for row in rows):
        return plain
    apart = [
        (f"{what}, {cache}>", _of_cache(key, cache))
        for what, key in (("session", "load_ns"), ("first inference", "first_ns"))
        for cache in ("cold", "warm")
    ]
    return [*(plain if not all(row.get("caches") for row in rows) else [runtime]), *apart]


_MEMORY: tuple[Column, ...] = (
    ("peak RSS MB>", lambda row: megabytes(row["peak_rss"])),
    ("RSS MB>", lambda row: megabytes(row["rss"])),
    ("of which runtime>", lambda row: megabytes(row["runtime"]["rss"])),
    ("samples>", lambda row: megabytes(row["samples_bytes"])),
    ("USS MB>", lambda row: megabytes(row["uss"])),
    ("arena MB>", lambda row: megabytes(_arena(row, "held"))),
    ("of which used>", lambda row: megabytes(_arena(row, "peak"))),
    ("file>", lambda row: size(row["size"])),
)
_GPU: tuple[Column, ...] = (
    ("GPU", lambda row: row["name"]),
    ("memory used MB>", lambda row: megabytes(row["memory_used"])),
    ("SM clock MHz>", lambda row: figure(row["sm_mhz"])),
    ("of MHz>", lambda row: figure(row["sm_mhz_max"])),
    ("power W>", lambda row: figure(row["watts"])),
    ("of W>", lambda row: figure(row["watts_limit"])),
    ("degrees C>", lambda row: figure(row["celsius"])),
)
_COST: tuple[Column, ...] = (
    ("CPU ms>", _ms("cpu_ns")),
    ("CPU ms spinning after a burst>", _ms("spin_ns")),
    ("energy>", _energy),
)


def _reported(names: Sequence[Column], rows: Sequence[Row]) -> None:
    keys = list(
        dict.fromkeys(
            key
            for row in rows
            for key, value in row["reported"].items()
            if isinstance(value, (bool, int, float)) or value is None
        )
    )
    if not keys:
        return
    columns = [(f"{_heading(key)}>", _number(key)) for key in keys]
    _table((*names, *columns), rows, "as the workload counts")


def _shapes(row: Row) -> None:
    parts = row["reported"].get("per_shape")
    if parts:
        keys = list(next(iter(parts.values())))
        output.table(
            ("shape", *(f"{_heading(key)}>" for key in keys)),
            [(shape, *(_written(key, one[key]) for key in keys)) for shape, one in parts.items()],
            f"by shape: {Path(row['model']).name} on {row['backend']}",
        )


def _nodes(row: Row) -> None:
    """Print the nodes for which a run allocates most; all are in the JSON."""
    recorded = row["allocated"] or {}
    if "nodes" not in recorded or row["again"]:
        return
    title = f"memory by node: {Path(row['model']).name} on {row['backend']}"
    if recorded["nodes"] is None:
        output.say(f"{title}: not measured, {recorded['why']['nodes']}")
        return
    keys = ("outputs", "temporary", "inputs")
    biggest = recorded["nodes"][:_MOST_NODES]
    output.table(
        ("node", "outputs MB>", "scratch MB>", "reads MB, weights too>"),
        [(n["name"], *(megabytes(n[key] or None) for key in keys)) for n in biggest],
        f"{title}, the biggest of {len(recorded['nodes'])}",
    )


def _heading(key: str) -> str:
    return f"{key.removesuffix('_ns').replace('_', ' ')}{' ms' if key.endswith('_ns') else ''}"


def _number(key: str) -> Callable[[Row], str]:
    return lambda row: _written(key, row["reported"].get(key))


def _written(key: str, value: float | bool | None) -> str:
    if key.endswith("_ns"):
        return milliseconds(value)
    return ("yes" if value else "no") if isinstance(value, bool) else figure(value)
