"""Time models on backends side by side, noise told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.analysis.benchmark.requests import Bench
from ortune.cli.main import DONE, NO
from ortune.cli.terminal import output
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import figure, interval, megabytes, milliseconds, size
from ortune.core.capabilities import HERE, placed
from ortune.core.request import request
from ortune.core.wording import count

if TYPE_CHECKING:
    from ortune.analysis.benchmark.interleave import BenchResult, SelfCheck, Winner
    from ortune.core.trial import Interval

_DROPPED = ("p90 ms>", "CPU ms>", "size>", "peak MB>", "runs/s>", "samples/s>")
"""Columns that go first where a terminal is narrow; ``--wide`` shows all."""
_GAP = 2

Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]


@request
class _Asked(Bench):
    """Options of the command line.

    Attributes:
        wide: Show every figure.
    """

    _: KW_ONLY
    wide: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the rows; exit code 1 when the first one differs from itself."""
    from ortune.analysis.benchmark.bench import run

    found = run(asked)
    if found.pipelines:
        output.answer(found, lambda: _show_frames(found))
    else:
        output.answer(found, lambda: show_rows(found, wide=asked.wide))
    check = found.self_check
    return NO if check is not None and not check.equal else DONE


def show_rows(found: BenchResult, *, wide: bool) -> None:
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
    # The lines below the tables, the winner last.
    several = len(found.winners) > 1
    lines = []
    if len(rows) > 1:
        of = "the first row of the same batch" if several else "the first row"
        lines.append(f"ratio: {rows[0]['measure']} over that of {of}, with its 99 % interval")
        lines.append("ms: the median of the first row, of the others that times the ratio")
        # Count the rows by how they stand to the first.
        said = ", ".join(f"{number} {kind}" for kind, number in found.counts.items() if number)
        lines += [f"beside the first row: {said}"] if said else []
    if rows[0]["measure"] == "latency" and any(n > 1 for row in rows for n in row["runs_each"]):
        most = max(each for row in rows for each in row["runs_each"])
        text = f"short runs: a sample is the mean of up to {count(most, 'run')}, percentiles too"
        lines.append(text)
    lines += [
        f"{row['backend']}: {note}" if len(rows) > 1 else note
        for row in rows
        for note in row["reported"].get("notes", ())
    ]
    lines += _check(found.self_check)
    judged = found.judgement
    lines += [f"note: {one.what}; to change that: {one.change}" for one in judged.advice]
    for one in found.winners:
        lines += _winner(one, found, rows, several)
    for line in lines:
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
    plain: list[Column] = [
        ("session>", _middle("load_ns")),
        ("first inference>", _middle("first_ns")),
    ]
    if not any(row.get("caches") for row in rows):
        return plain
    apart = [
        (f"{what}, {cache}>", _of_cache(key, cache))
        for what, key in (("session", "load_ns"), ("first inference", "first_ns"))
        for cache in ("cold", "warm")
    ]
    return [*(plain if not all(row.get("caches") for row in rows) else ()), *apart]


_MEMORY: tuple[Column, ...] = (
    ("peak RSS MB>", lambda row: megabytes(row["peak_rss"])),
    ("RSS MB>", lambda row: megabytes(row["rss"])),
    ("samples>", lambda row: megabytes(row["samples_bytes"])),
    ("USS MB>", lambda row: megabytes(row["uss"])),
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


def _heading(key: str) -> str:
    return f"{key.removesuffix('_ns').replace('_', ' ')}{' ms' if key.endswith('_ns') else ''}"


def _number(key: str) -> Callable[[Row], str]:
    return lambda row: _written(key, row["reported"].get(key))


def _written(key: str, value: float | bool | None) -> str:
    if key.endswith("_ns"):
        return milliseconds(value)
    return ("yes" if value else "no") if isinstance(value, bool) else figure(value)


def _check(check: SelfCheck | None) -> list[str]:
    if check is None:
        return []
    text = interval(check.ratio)
    if check.equal:
        apart = 100 * (check.ratio.high / check.ratio.value - 1)
        said = f"self-check: equal is called equal here: the first row is {text} of itself"
        return [f"{said}; less than {apart:.1f} % cannot be distinguished"]
    return [
        f"self-check failed: the first row is {text} of itself; the intervals have that in them",
        "measure again on a quieter machine, or for longer with --seconds",
    ]


def _winner(one: Winner, found: BenchResult, rows: Sequence[Row], several: bool) -> list[str]:
    group = [row for row in rows if row["workload"] == one.workload and not row["again"]]
    if len(group) < 2:
        return []
    where = f"batch {one.batch}: " if several else ""
    if one.row is not None:
        row = rows[one.row]
        model = f"{Path(row['model']).name} on " if len({r["model"] for r in rows}) > 1 else ""
        return [f"{where}fastest: {model}{placed(row)}"]
    if found.judgement.too_noisy:
        return [f"{where}no winner: this machine is too noisy for a verdict"]
    return [f"{where}no winner: the difference is inside the noise"]


def _show_frames(found: BenchResult) -> None:
    """Print frames beside the models alone, then what follows from them."""
    output.table(
        (
            *("model", "backend", "model ms>", "model, a second>", "ratio [99 %]>"),
            *("frame ms>", "frames a second>", "ratio [99 %]>", "model in a frame>", ""),
        ),
        [
            (
                Path(found.rows[one.row]["model"]).name,
                placed(found.rows[one.row]),
                milliseconds(_each_ns(one.model_per_s)),
                figure(one.model_per_s),
                interval(one.model_ratio),
                milliseconds(_each_ns(one.frames_per_s)),
                figure(one.frames_per_s),
                interval(one.ratio),
                _percent(one.share),
                found.rows[one.row]["error"] or found.rows[one.model_row]["error"] or "",
            )
            for one in found.pipelines
        ],
        f"around the model: {found.rows[0]['workload']}",
    )
    output.say("model: the calls that a frame makes of the engine, without the rest of the frame")
    for line in () if found.judgement.too_noisy else _gains(found):
        output.say(line)
    for advice in found.judgement.advice:
        output.say(f"note: {advice.what}; to change that: {advice.change}")
    if found.judgement.too_noisy:
        output.say("nothing is claimed: this machine is too noisy for a verdict")


def _gains(found: BenchResult) -> Iterator[str]:
    """Say of every plan but the first what its speed is worth in the frame."""
    for one in found.pipelines[1:]:
        if one.ratio is None or one.model_ratio is None:
            continue
        row = found.rows[one.row]
        name = f"{Path(row['model']).name} on {placed(row)}"
        yield f"{name}: the model is {_times(one.model_ratio)}, the pipeline {_times(one.ratio)}"


def _times(ratio: Interval) -> str:
    """Say how a time stands to the first one's."""
    if not ratio.clear:
        return "no other within the noise"
    return f"{1 / ratio.value:.2f}x as fast [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]"


def _percent(share: Interval | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _each_ns(per_second: float | None) -> float | None:
    return 1e9 / per_second if per_second else None
