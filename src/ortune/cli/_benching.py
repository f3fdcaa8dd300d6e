"""What `bench` shows: the figures that decide first, all of them with ``--wide``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from ortune.cli import shared
from ortune.core.errors import OrtuneError

_MOST_NODES = 10
_DROPPED = ("p90 ms>", "CPU ms>", "size>", "peak MB>", "runs/s>", "samples/s>")
"""Columns that go first where a terminal is narrow; ``--wide`` shows all."""
_GAP = 3

Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]


def counts(text: str | None, option: str) -> tuple[int, ...]:
    """Read ``1,8``.

    Raises:
        OrtuneError: A part is no number.
    """
    parts = words(text)
    for part in parts:
        if not part.isdecimal():
            raise OrtuneError(f"'{part}' in {option} is no number", fix=f"write {option} 1,8")
    return tuple(int(part) for part in parts)


def words(text: str | None) -> tuple[str, ...]:
    """Read words by comma."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def show(found: Mapping[str, Any], *, wide: bool) -> None:
    """Print the rows, then what follows from them."""
    rows = [{**row, "ratio": r} for row, r in zip(found["rows"], found["ratios"], strict=True)]
    names, same = _names(rows)
    if same:
        shared.say(", ".join(same))
    columns = [*names, *_main(rows)]
    kept = columns if wide else _fitting(columns, rows)
    _table((*kept, ("", _error)), rows)
    if left := [name.rstrip(">") for name, _ in columns if name not in dict(kept)]:
        shared.say(f"left out, the terminal is narrow: {', '.join(left)} (--wide)")
    if wide:
        _table((*names, *_LATENCY), rows, "latency, ms, over all samples of all processes")
        _table(
            (*names, *_START), rows, "start in a fresh process, ms; the runtime's import included"
        )
        _table((*names, *_MEMORY), rows, "memory")
        _table((*names, *_COST), rows, "cost of a run")
        for why in dict.fromkeys(row["joules"].get("why") for row in rows):
            if why:
                shared.say(f"energy is not measured: {why}")
    _reported(names, rows)
    for row in rows:
        _shapes(row)
        _nodes(row)
    for line in _sentences(found, rows):
        shared.say(line)


def _table(columns: Sequence[Column], rows: Sequence[Row], title: str = "") -> None:
    cells = [[write(row) for _, write in columns] for row in rows]
    kept = [k for k, (name, _) in enumerate(columns) if name or any(line[k] for line in cells)]
    shared.table([columns[k][0] for k in kept], [[line[k] for k in kept] for line in cells], title)


def _fitting(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave out what decides least until the table fits the terminal."""
    kept = list(columns)
    for name in _DROPPED:
        widths = [max(len(title), *(len(write(row)) for row in rows)) for title, write in kept]
        if sum(widths) + _GAP * len(widths) <= shared.console().width:
            break
        kept = [one for one in kept if one[0] != name]
    return kept


def _names(rows: Sequence[Row]) -> tuple[list[Column], list[str]]:
    """Return the columns that tell rows apart, and what all rows share in words."""
    columns: list[Column] = []
    same: list[str] = []
    every: tuple[Column, ...] = (
        ("model", lambda row: Path(row["model"]).name),
        ("backend", lambda row: row["backend"] + (" (again)" if row["again"] else "")),
        ("workload", lambda row: _kind(row["workload"])),
        ("batch>", lambda row: str(row["batch"]) if row["batch"] else "as it comes"),
    )
    for name, write in every:
        values = list(dict.fromkeys(write(row) for row in rows))
        if len(values) > 1 or name == "backend":
            columns.append((name, write))
        elif values[0] not in ("latency", "as it comes"):
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
        ("p50 ms>", _ms("p50_ns")),
        ("p90 ms>", _ms("p90_ns")),
        (rate, lambda row: _figure(row.get("per_second"))),
        ("CPU ms>", _ms("cpu_ns")),
        ("peak MB>", lambda row: _mb(row.get("peak_rss"))),
    ]
    if len({row["size"] for row in rows}) > 1:
        columns.append(("size>", lambda row: shared.size(row["size"])))
    if len(rows) > 1:
        columns.append(("ratio [99 %]>", _ratio))
    return columns


def milliseconds(ns: float | None) -> str:
    """Write nanoseconds as milliseconds; a dash where the samples support no such figure."""
    return "-" if ns is None else f"{ns / 1e6:.{1 if ns >= 1e8 else 2 if ns >= 1e7 else 3}f}"


def _ms(key: str) -> Callable[[Row], str]:
    return lambda row: milliseconds(row.get(key))


def _middle(key: str) -> Callable[[Row], str]:
    return lambda row: milliseconds(median(row[key]) if row[key] else None)


def _mb(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _ratio(row: Row) -> str:
    found = row["ratio"]
    if found is None:
        return "-"
    if found["low"] == found["high"] == 1:
        return "1"
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


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
    ("samples>", lambda row: str(len(row["latency_ns"]))),
    ("mean>", _ms("mean_ns")),
    ("sd>", _ms("sd_ns")),
    ("min>", _ms("min_ns")),
    ("p50>", _ms("p50_ns")),
    ("p90>", _ms("p90_ns")),
    ("p99>", _ms("p99_ns")),
    ("p99.9>", _ms("p999_ns")),
    ("max>", _ms("max_ns")),
)
_START: tuple[Column, ...] = (
    ("session>", _middle("load_ns")),
    ("of which runtime>", lambda row: milliseconds(row["runtime"]["load_ns"])),
    ("first inference>", _middle("first_ns")),
)
_MEMORY: tuple[Column, ...] = (
    ("peak RSS MB>", lambda row: _mb(row["peak_rss"])),
    ("RSS MB>", lambda row: _mb(row["rss"])),
    ("of which runtime>", lambda row: _mb(row["runtime"]["rss"])),
    ("USS MB>", lambda row: _mb(row["uss"])),
    ("arena MB>", lambda row: _mb(_arena(row, "held"))),
    ("of which used>", lambda row: _mb(_arena(row, "peak"))),
    ("file>", lambda row: shared.size(row["size"])),
)
_COST: tuple[Column, ...] = (
    ("CPU ms>", _ms("cpu_ns")),
    ("CPU ms spinning after a burst>", _ms("spin_ns")),
    ("energy>", _energy),
)


def _reported(names: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print the workload's own numbers."""
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
    """Print what the workload tells of each shape."""
    parts = row["reported"].get("per_shape")
    if parts:
        keys = list(next(iter(parts.values())))
        shared.table(
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
        shared.say(f"{title}: not measured, {recorded['why']['nodes']}")
        return
    keys = ("outputs", "temporary", "inputs")
    biggest = recorded["nodes"][:_MOST_NODES]
    shared.table(
        ("node", "outputs MB>", "scratch MB>", "reads MB, weights too>"),
        [(n["name"], *(_mb(n[key] or None) for key in keys)) for n in biggest],
        f"{title}, the biggest of {len(recorded['nodes'])}",
    )


def _heading(key: str) -> str:
    return f"{key.removesuffix('_ns').replace('_', ' ')}{' ms' if key.endswith('_ns') else ''}"


def _number(key: str) -> Callable[[Row], str]:
    return lambda row: _written(key, row["reported"].get(key))


def _written(key: str, value: float | bool | None) -> str:
    """Write a workload's figure by its name's ending."""
    if key.endswith("_ns"):
        return milliseconds(value)
    return ("yes" if value else "no") if isinstance(value, bool) else _figure(value)


def _sentences(found: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    several = len(found["winners"]) > 1
    lines = []
    if len(rows) > 1:
        of = "the first row of the same batch" if several else "the first row"
        lines.append(f"ratio: {rows[0]['measure']} over that of {of}, with its 99 % interval")
    if rows[0]["measure"] == "latency" and any(n > 1 for row in rows for n in row["runs_each"]):
        most = max(each for row in rows for each in row["runs_each"])
        lines.append(f"short runs: a sample is the mean of up to {most} runs, percentiles too")
    lines += [
        f"{row['backend']}: {note}" if len(rows) > 1 else note
        for row in rows
        for note in row["reported"].get("notes", ())
    ]
    lines += _check(found["self_check"])
    judged = found["judgement"]
    lines += [f"note: {one['what']}; to change that: {one['change']}" for one in judged["advice"]]
    for one in found["winners"]:
        lines += _winner(one, found, rows, several)
    return lines + _crossovers(found["crossovers"])


def _crossovers(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say where sides change; where none does, who is ahead of the first."""
    real = [one for one in every if one["batch"] is not None]
    first = [one for one in every if one["one"] == every[0]["one"]]
    return [one["says"] for one in real or first]


def _check(check: Mapping[str, Any] | None) -> list[str]:
    if check is None:
        return []
    text = _ratio({"ratio": check["ratio"]})
    if check["equal"]:
        apart = 100 * (check["ratio"]["high"] / check["ratio"]["value"] - 1)
        said = f"self-check: equal is called equal here: the first row is {text} of itself"
        return [f"{said}; less than {apart:.1f} % cannot be told apart"]
    return [
        f"self-check failed: the first row is {text} of itself, so no difference is trusted here",
        "measure again on a quieter machine, or for longer with --seconds",
    ]


def _winner(
    one: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row], several: bool
) -> list[str]:
    group = [row for row in rows if row["workload"] == one["workload"] and not row["again"]]
    if len(group) < 2:
        return []
    where = f"batch {one['batch']}: " if several else ""
    check = found["self_check"]
    if one["row"] is not None:
        row = rows[one["row"]]
        model = f"{Path(row['model']).name} on " if len({r["model"] for r in rows}) > 1 else ""
        return [f"{where}fastest: {model}{row['backend']}"]
    if check is not None and not check["equal"]:
        return [f"{where}no winner: the self-check failed"]
    if found["judgement"]["too_noisy"]:
        return [f"{where}no winner: this machine is too noisy for a verdict"]
    return [f"{where}no winner: the difference is inside the noise"]
