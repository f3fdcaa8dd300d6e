"""A load test, or the search for a goal, as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.cli.terminal.output import format_ms
from ortune.core import wording as say
from ortune.core.section import Bar, Bars, Block, Heading, Line, Lines, Pill, Table, Text, Tile
from ortune.reporting.blocks import Part, summarize
from ortune.reporting.results import Page
from ortune.reporting.sections.common.plans import count_disturbances
from ortune.serving.load_testing.goal import GoalResult
from ortune.serving.load_testing.loadtest import LoadTestResult


def build_load_page(result: LoadTestResult) -> Page:
    """Return a load test as a page: its answer, latency against throughput, its levels."""
    rows, most = result.rows, result.most
    pills = [Pill("no right answer came", "bad")] if most is None else []
    if result.slo:
        kept = ("not kept", "bad") if result.kept is None else ("kept", "good")
        pills.append(Pill(f"{result.slo}: {kept[0]}", kept[1]))
    if result.checked is not None:
        wrong = result.checked.wrong
        pills.append(Pill(f"{wrong:,} wrong answers", "bad" if wrong else "good"))
    judged = result.judgement
    noisy = Pill("machine too noisy", "bad")
    pills.append(noisy if judged.too_noisy else count_disturbances(judged.advice))
    tiles = []
    for title, place in (("most", most), ("knee", result.knee), ("within limit", result.kept)):
        if place is not None:
            level = rows[place]
            ends = [name for name in ("p99", "p95") if level.get(f"{name}_ns")]
            note = f"{ends[0]} {format_ms(level[f'{ends[0]}_ns'])} ms" if ends else ""
            figure = f"{say.format_rate(level['requests_per_s'])} a second"
            tiles.append(Tile(title, figure, _name_level(level), note))
    failed = sum(level["failed"] for level in rows)
    tiles.append(Tile("failed", f"{failed:,}", "requests", tone="bad" if failed else "plain"))
    lines = tuple(
        Line(word, tuple(points))
        for word in ("p50", "p90", "p99")
        if (points := sorted(_list_points(rows, f"{word}_ns")))
    )
    plot: tuple[Block, ...] = ()
    if any(len(line.points) > 1 for line in lines):
        plot = (
            Heading("Latency against throughput"),
            Lines("right answers a second", "latency, ms", lines, log_y=True),
        )
    columns = ("level", "requests/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "failed")
    cells = tuple(
        (
            _name_level(level),
            say.format_rate(level["requests_per_s"]),
            *(format_ms(level.get(f"{word}_ns")) for word in ("p50", "p90", "p95", "p99")),
            str(level["failed"]),
        )
        for level in rows
    )
    notes = [Text(text) for text in (f"Latency: {result.clock}.", *result.notes)]
    table: tuple[Block, ...] = (Heading("Levels"), Table(columns, cells), *notes)
    title = f"{result.model} over {result.protocol}"
    return title, (summarize(pills, tiles), Part("load", (*plot, *table)))


def build_goal_page(result: GoalResult) -> Page:
    """Return settings chosen for a goal as a page: which, how sure, and what else was tried."""
    ratio = result.ratio
    pills = [
        Pill("better than the defaults", "good") if result.better else Pill("the defaults stay")
    ]
    if result.notes:
        pills.append(Pill(say.format_count(len(result.notes), "remark"), "warn"))
    span = (ratio.low, ratio.high) if ratio is not None and ratio.is_bounded else None
    note = f"95 % interval {say.format_span(ratio)}; the mark is 1" if ratio and span else ""
    tiles = (
        Tile("take", result.choice, f"the defaults: {result.defaults}"),
        Tile(
            "over the defaults",
            f"{ratio.value:.3g}x" if ratio is not None else "not measured again",
            say.format_count(result.pairs, "fresh pair"),
            note,
            "good" if result.better else "plain",
            span,
        ),
        Tile("goal", result.goal, f"the defaults: {result.before}"),
    )
    bars = tuple(
        Bar(row.settings, (row.ratio,), f"{row.ratio:.3g}x, {say.format_count(row.pairs, 'pair')}")
        for row in result.tried
    )
    tried: tuple[Block, ...] = ()
    if bars:
        tried = (Heading("Settings that were tried"), Bars("times the defaults", bars))
    remarks = [Text(text) for text in (result.verdict, *result.notes)]
    part = Part("goal", (*tried, Heading("In words"), *remarks))
    return f"{Path(result.bundle).name}: {result.goal}", (summarize(pills, tiles), part)


def _name_level(level: Mapping[str, Any]) -> str:
    workload = str(level["workload"])
    return workload.partition(", ")[2] or workload


def _list_points(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(row["requests_per_s"], row[name] / 1e6) for row in rows if row.get(name)]
