"""Time models on backends side by side, with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.analysis.benchmark.requests import Bench
from ortune.cli.main import DONE, NO
from ortune.cli.terminal import output
from ortune.cli.terminal.command import is_verbose, make_command
from ortune.core.capabilities import HERE, describe_placement
from ortune.core.wording import format_count

if TYPE_CHECKING:
    from ortune.analysis.benchmark.interleave import BenchResult, SelfCheck, Winner
    from ortune.core.trial import Interval

_DROPPED = ("p90 ms>", "CPU ms>", "size>", "peak MB>", "runs/s>", "samples/s>")
"""Columns that go first where a terminal is narrow; ``-v`` shows all."""
_GAP = 2

Row: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, Callable[[Row], str]]


@make_command(Bench)
def command(options: Bench) -> int:
    """Show the rows; exit code 1 when the first one differs from itself."""
    from ortune.analysis.benchmark.bench import run

    result = run(options)
    if result.pipelines:
        output.print_result(result, lambda: _print_frames(result))
    else:
        output.print_result(result, lambda: print_rows(result, wide=is_verbose()))
    check = result.self_check
    return NO if check is not None and not check.equal else DONE


def print_rows(result: BenchResult, *, wide: bool) -> None:
    """Print the rows, then what follows from them."""
    rows = [{**row, "ratio": r} for row, r in zip(result.rows, result.ratios, strict=True)]
    names, same = _find_distinct_columns(rows)
    if same:
        output.print_text(", ".join(same))
    columns = [*names, *_list_main_columns(rows)]
    kept = columns if wide else _fit_columns(columns, rows)
    _print_table((*kept, ("", lambda row: row["error"] or "")), rows)
    if hidden := [name.rstrip(">") for name, _ in columns if name not in dict(kept)]:
        output.print_text(f"left out, the terminal is narrow: {', '.join(hidden)} (-v)")
    if wide:
        _print_table((*names, *_LATENCY), rows, "latency, ms, over all samples of all processes")
        _print_table(
            (*names, *_list_startup_columns(rows)),
            rows,
            "start in a fresh process, ms; the runtime's import included",
        )
        _print_table((*names, *_MEMORY), rows, "memory")
        _print_table((*names, *_COST), rows, "cost of a run")
        gpus = [{**row, **gpu} for row in rows for gpu in row.get("gpus", ())[-1:]]
        if gpus:
            _print_table((*names, *_GPU), gpus, "the GPU directly after computing")
        for why in dict.fromkeys(row["joules"].get("why") for row in rows):
            if why:
                output.print_text(f"energy is not measured: {why}")
    _print_counters(names, rows)
    for row in rows:
        _print_shapes(row)
    # The lines below the tables, the winner last.
    several = len(result.winners) > 1
    lines = []
    if len(rows) > 1:
        of = "the first row of the same batch" if several else "the first row"
        lines.append(
            f"ratio: {rows[0]['measure']} divided by that of {of}, with its 99 % interval"
        )
        lines.append(
            "ms: the median of the first row; for the others, that median times the ratio"
        )
        # Count the rows by how they stand to the first.
        tally = ", ".join(f"{number} {kind}" for kind, number in result.counts.items() if number)
        lines += [f"against the first row: {tally}"] if tally else []
    if rows[0]["measure"] == "latency" and any(n > 1 for row in rows for n in row["runs_each"]):
        most = max(each for row in rows for each in row["runs_each"])
        text = (
            f"short runs: a sample is the mean of up to {format_count(most, 'run')}, percentiles "
            "too"
        )
        lines.append(text)
    lines += [
        f"{row['backend']}: {note}" if len(rows) > 1 else note
        for row in rows
        for note in row["reported"].get("notes", ())
    ]
    lines += _describe_self_check(result.self_check)
    judged = result.judgement
    lines += [f"note: {entry.what}; to change that: {entry.change}" for entry in judged.advice]
    for entry in result.winners:
        lines += _describe_winner(entry, result, rows, several)
    for line in lines:
        output.print_text(line)


def _print_table(columns: Sequence[Column], rows: Sequence[Row], title: str = "") -> None:
    cells = [[write(row) for _, write in columns] for row in rows]
    kept = [k for k, (name, _) in enumerate(columns) if name or any(line[k] for line in cells)]
    output.print_table(
        [columns[k][0] for k in kept], [[line[k] for k in kept] for line in cells], title
    )


def _fit_columns(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave out what decides least until the table fits the terminal."""
    kept = list(columns)
    for name in _DROPPED:
        widths = [max(len(title), *(len(write(row)) for row in rows)) for title, write in kept]
        if sum(widths) + _GAP * len(widths) <= output.make_console().width:
            break
        kept = [column for column in kept if column[0] != name]
    return kept


def _find_distinct_columns(rows: Sequence[Row]) -> tuple[list[Column], list[str]]:
    """Return the columns that tell rows apart, and what all rows share in words."""
    columns: list[Column] = []
    same: list[str] = []
    candidates: tuple[Column, ...] = (
        ("model", lambda row: Path(row["model"]).name),
        ("backend", _format_backend),
        ("environment", lambda row: row.get("environment", HERE)),
        ("workload", lambda row: _strip_batch(row["workload"])),
        ("batch>", lambda row: str(row["batch"]) if row["batch"] else "as it comes"),
    )
    for name, write in candidates:
        values = list(dict.fromkeys(write(row) for row in rows))
        if len(values) > 1 or name == "backend":
            columns.append((name, write))
        elif values[0] not in ("latency", "as it comes", HERE):
            same.append(f"{name.rstrip('>')} {values[0]}")
    return columns, same


def _strip_batch(workload: str) -> str:
    """Drop the batch from a workload's spelling: it has a column of its own."""
    name, _, fields = workload.rstrip(")").partition("(")
    remaining = [field for field in fields.split(", ") if field and not field.startswith("batch=")]
    return f"{name}({', '.join(remaining)})" if remaining else name


def _list_main_columns(rows: Sequence[Row]) -> list[Column]:
    rate = "samples/s>" if any(row["batch"] for row in rows) else "runs/s>"
    columns: list[Column] = [
        ("ms>", _make_milliseconds_cell("typical_ns")),
        ("p90 ms>", _make_milliseconds_cell("p90_ns")),
        (rate, lambda row: output.format_figure(row.get("per_second"))),
        ("CPU ms>", _make_milliseconds_cell("cpu_ns")),
        ("peak MB>", lambda row: output.format_mb(row.get("peak_rss"))),
    ]
    if any(row.get("device_ns") for row in rows):
        columns.insert(1, ("on the device ms>", _make_milliseconds_cell("device_ns")))
    if len({row["size"] for row in rows}) > 1:
        columns.append(("size>", lambda row: output.format_size(row["size"])))
    if len(rows) > 1:
        columns.append(("ratio [99 %]>", lambda row: output.format_interval(row["ratio"])))
    return columns


def _format_backend(row: Row) -> str:
    again = " (again)" if row["again"] else ""
    return f"{row['backend']}{again}{' (unverified)' if row.get('unverified') else ''}"


def _make_milliseconds_cell(key: str) -> Callable[[Row], str]:
    return lambda row: output.format_ms(row.get(key))


def _make_median_cell(key: str) -> Callable[[Row], str]:
    """Return what writes a median; none of a provider that builds engines, which has two."""
    return lambda row: output.format_ms(
        median(row[key]) if row[key] and not row.get("caches") else None
    )


def _make_cache_median_cell(key: str, cache: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        pairs = zip(row[key], row.get("caches", ()), strict=False)
        times = [ns for ns, state in pairs if state == cache]
        return output.format_ms(median(times) if times else None)

    return write


def _format_energy(row: Row) -> str:
    used = row["joules"]["per_run"]
    if not used:
        return "not measured"
    return ", ".join(f"{name} {1000 * joules:.3g} mJ" for name, joules in used.items())


_LATENCY: tuple[Column, ...] = (
    ("entries>", lambda row: str(row.get("entries", 0))),
    ("mean>", _make_milliseconds_cell("mean_ns")),
    ("sd>", _make_milliseconds_cell("sd_ns")),
    ("min>", _make_milliseconds_cell("min_ns")),
    ("p50>", _make_milliseconds_cell("p50_ns")),
    ("p90>", _make_milliseconds_cell("p90_ns")),
    ("p99>", _make_milliseconds_cell("p99_ns")),
    ("p99.9>", _make_milliseconds_cell("p999_ns")),
    ("max>", _make_milliseconds_cell("max_ns")),
)


def _list_startup_columns(rows: Sequence[Row]) -> list[Column]:
    """Where a provider builds engines, the process that built and those that did not, apart."""
    plain: list[Column] = [
        ("session>", _make_median_cell("load_ns")),
        ("first inference>", _make_median_cell("first_ns")),
    ]
    if not any(row.get("caches") for row in rows):
        return plain
    apart = [
        (f"{label}, {cache}>", _make_cache_median_cell(key, cache))
        for label, key in (("session", "load_ns"), ("first inference", "first_ns"))
        for cache in ("cold", "warm")
    ]
    return [*(plain if not all(row.get("caches") for row in rows) else ()), *apart]


_MEMORY: tuple[Column, ...] = (
    ("peak RSS MB>", lambda row: output.format_mb(row["peak_rss"])),
    ("RSS MB>", lambda row: output.format_mb(row["rss"])),
    ("samples>", lambda row: output.format_mb(row["samples_bytes"])),
    ("USS MB>", lambda row: output.format_mb(row["uss"])),
    ("file>", lambda row: output.format_size(row["size"])),
)
_GPU: tuple[Column, ...] = (
    ("GPU", lambda row: row["name"]),
    ("memory used MB>", lambda row: output.format_mb(row["memory_used"])),
    ("SM clock MHz>", lambda row: output.format_figure(row["sm_mhz"])),
    ("of MHz>", lambda row: output.format_figure(row["sm_mhz_max"])),
    ("power W>", lambda row: output.format_figure(row["watts"])),
    ("of W>", lambda row: output.format_figure(row["watts_limit"])),
    ("degrees C>", lambda row: output.format_figure(row["celsius"])),
)
_COST: tuple[Column, ...] = (
    ("CPU ms>", _make_milliseconds_cell("cpu_ns")),
    ("CPU ms spinning after a burst>", _make_milliseconds_cell("spin_ns")),
    ("energy>", _format_energy),
)


def _print_counters(names: Sequence[Column], rows: Sequence[Row]) -> None:
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
    columns: list[Column] = [
        (
            f"{_format_heading(key)}>",
            lambda row, key=key: _format_counter(key, row["reported"].get(key)),  # type: ignore[misc]
        )
        for key in keys
    ]
    _print_table((*names, *columns), rows, "as the workload counts")


def _print_shapes(row: Row) -> None:
    parts = row["reported"].get("per_shape")
    if parts:
        keys = list(next(iter(parts.values())))
        output.print_table(
            ("shape", *(f"{_format_heading(key)}>" for key in keys)),
            [
                (shape, *(_format_counter(key, counters[key]) for key in keys))
                for shape, counters in parts.items()
            ],
            f"by shape: {Path(row['model']).name} on {row['backend']}",
        )


def _format_heading(key: str) -> str:
    return f"{key.removesuffix('_ns').replace('_', ' ')}{' ms' if key.endswith('_ns') else ''}"


def _format_counter(key: str, value: float | bool | None) -> str:
    if key.endswith("_ns"):
        return output.format_ms(value)
    return ("yes" if value else "no") if isinstance(value, bool) else output.format_figure(value)


def _describe_self_check(check: SelfCheck | None) -> list[str]:
    if check is None:
        return []
    text = output.format_interval(check.ratio)
    if check.equal:
        apart = 100 * (check.ratio.high / check.ratio.value - 1)
        verdict = f"self-check passed: the first row is {text} of itself"
        return [f"{verdict}; less than {apart:.1f} % cannot be distinguished"]
    return [
        f"self-check failed: the first row is {text} of itself; the intervals include this error",
        "measure again on a quieter machine, or for longer with --time",
    ]


def _describe_winner(
    winner: Winner, result: BenchResult, rows: Sequence[Row], several: bool
) -> list[str]:
    group = [row for row in rows if row["workload"] == winner.workload and not row["again"]]
    if len(group) < 2:
        return []
    where = f"batch {winner.batch}: " if several else ""
    if winner.row is not None:
        row = rows[winner.row]
        model = f"{Path(row['model']).name} on " if len({r["model"] for r in rows}) > 1 else ""
        return [f"{where}fastest: {model}{describe_placement(row)}"]
    if result.judgement.too_noisy:
        return [f"{where}no winner: this machine is too noisy for a verdict"]
    return [f"{where}no winner: the difference is within noise"]


def _print_frames(result: BenchResult) -> None:
    """Print frames beside the models alone, then what follows from them."""
    output.print_table(
        (
            *("model", "backend", "model ms>", "model, a second>", "ratio [99 %]>"),
            *("frame ms>", "frames a second>", "ratio [99 %]>", "model in a frame>", ""),
        ),
        [
            (
                Path(result.rows[frame.row]["model"]).name,
                describe_placement(result.rows[frame.row]),
                output.format_ms(_compute_item_ns(frame.model_per_s)),
                output.format_figure(frame.model_per_s),
                output.format_interval(frame.model_ratio),
                output.format_ms(_compute_item_ns(frame.frames_per_s)),
                output.format_figure(frame.frames_per_s),
                output.format_interval(frame.ratio),
                _format_percent(frame.share),
                result.rows[frame.row]["error"] or result.rows[frame.model_row]["error"] or "",
            )
            for frame in result.pipelines
        ],
        f"around the model: {result.rows[0]['workload']}",
    )
    output.print_text("model: the engine calls within a frame, without the rest of the frame")
    for line in () if result.judgement.too_noisy else _describe_gains(result):
        output.print_text(line)
    for advice in result.judgement.advice:
        output.print_text(f"note: {advice.what}; to change that: {advice.change}")
    if result.judgement.too_noisy:
        output.print_text("no verdict: this machine is too noisy")


def _describe_gains(result: BenchResult) -> Iterator[str]:
    """Say of every plan but the first what its speed is worth in the frame."""
    for frame in result.pipelines[1:]:
        if frame.ratio is None or frame.model_ratio is None:
            continue
        row = result.rows[frame.row]
        name = f"{Path(row['model']).name} on {describe_placement(row)}"
        yield (
            f"{name}: the model is {_format_speedup(frame.model_ratio)}, the pipeline "
            f"{_format_speedup(frame.ratio)}"
        )


def _format_speedup(ratio: Interval) -> str:
    """Say how a time stands to the first one's."""
    if not ratio.clear:
        return "no other within the noise"
    return f"{1 / ratio.value:.2f}x as fast [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]"


def _format_percent(share: Interval | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _compute_item_ns(per_second: float | None) -> float | None:
    return 1e9 / per_second if per_second else None
