"""The timeline of a model's costs, with a page of it."""

import math
from pathlib import Path
from statistics import median

from ortune.analysis.costs import timeline as timing
from ortune.analysis.costs.timeline import (
    BOTH,
    EVERY_SESSION,
    GRAPH,
    NONE,
    OFFLINE,
    ORT,
    QUANTIZED,
    CostLine,
    TimedVariant,
    Timeline,
    compute_total,
    find_break_even,
)
from ortune.core.atomic_write import write_text
from ortune.core.outputs import check_page_file
from ortune.core.request import make_verb
from ortune.core.section import Block, Heading, Line, Lines, Pill, Point, Table, Text, Tile
from ortune.core.wording import format_seconds
from ortune.reporting.blocks import Part, summarize
from ortune.reporting.html import render_page
from ortune.reporting.python.requests import TimelinePage

_STEPS = 48
_LOOSE = 1.3
"""Ends of a ratio's interval that far apart leave the question open."""
_DRAWN = (NONE, GRAPH, QUANTIZED, BOTH, f"{BOTH}, {OFFLINE}", EVERY_SESSION)


def build_timeline_blocks(result: Timeline) -> tuple[Block, ...]:
    """Return the table, the ranges, the break-evens and the chart."""
    plain_s = result.find_line(NONE).inference_s
    rows = [_make_row(row, plain_s) for row in result.rows]
    if session_line := result.every:
        once = format_seconds(session_line.session_s)
        each = format_seconds(session_line.inference_s)
        share = f"{session_line.inference_s / plain_s:.3f}"
        rows.append((session_line.name, "-", once, "-", each, share, "-", "-"))
    columns = ("once", "per session", "load, range", "per inference", "of as exported")
    # Draw seconds over inferences, both logarithmic: from one to ten times the last crossing.
    named = {*_DRAWN, *(segment.name for segment in result.cheapest)}
    starts = [(stretch.since, stretch.name) for stretch in result.cheapest if stretch.since > 0]
    last = 10 * max([*(n for n, _ in starts), result.per_session, 1000.0])
    places = [last ** (step / _STEPS) for step in range(_STEPS + 1)]

    def total_at(line: CostLine, n: float) -> tuple[float, float]:
        return n, compute_total(line, n, result.per_session)

    return (
        Heading("Cost over the model's life"),
        Lines(
            "inferences served",
            "seconds spent in all",
            tuple(
                Line(line.name, tuple(total_at(line, n) for n in places))
                for line in result.lines
                if line.name in named
            ),
            tuple(
                Point(*total_at(result.find_line(name), n), f"{format_inferences(n)}: {name}")
                for n, name in starts
                if n >= 1
            ),
            log_x=True,
            log_y=True,
            ends=True,
        ),
        Table(("", *columns, "measured beside, 99 %", "MB"), tuple(rows)),
        Text(
            f"A session serves {result.per_session:g} inferences. Importing the runtime takes "
            f"{format_seconds(median(result.import_ns) / 1e9)} more in every process, whatever "
            "it loads. Every variant was timed in turns with the one named beside its ratio; the "
            "column before is its latency over that of the model as exported. Rows within noise "
            "of each other show the same figure."
        ),
        Heading("The cheapest"),
        _make_ranges_table(result),
        Heading("Break-even (number of inferences)"),
        _make_break_even_table(result),
        *(Text(text) for text in list_timeline_remarks(result)),
        *([Heading("Notes")] if result.notes else []),
        *(Text(text) for text in result.notes),
    )


def list_timeline_remarks(result: Timeline) -> list[str]:
    """Say what quantizing in every session costs, what saved files bring, and what is open."""
    texts = []
    rows = {row.line.name: row.line for row in result.rows}
    if result.every is not None:
        texts.append(_describe_session_cost(result.every, rows[GRAPH]))
    kinds = [(name, kind) for name in (GRAPH, BOTH) for kind in (OFFLINE, ORT)]
    texts += [
        _describe_saving(saved, rows[name], kind)
        for name, kind in kinds
        if (saved := rows.get(f"{name}, {kind}")) is not None
    ]
    if loose := [row.line.name for row in result.rows if row.ratio.high > _LOOSE * row.ratio.low]:
        texts.append(
            f"Wide intervals: {'; '.join(loose)}. Give more --time, or use a quieter machine."
        )
    return texts


def _describe_session_cost(session_line: CostLine, graph: CostLine) -> str:
    """Return from how many inferences a session on it pays to quantize within the session."""
    gain = graph.inference_s - session_line.inference_s
    more = session_line.session_s - graph.session_s
    text = f"Quantizing in every session costs {format_seconds(more)} a session"
    if gain <= 0:
        return f"{text} and an inference is no faster: it never pays."
    return f"{text}: it pays from {format_with_noun(more / gain, 'inference')} in one session on."


def _describe_saving(saved_line: CostLine, source_line: CostLine, kind: str) -> str:
    gain = source_line.session_s - saved_line.session_s
    once = saved_line.once_s - source_line.once_s
    if gain == 0:
        return f"{source_line.name}, {kind}: sessions start no quicker (within noise)."
    change = f"{source_line.name}, {kind}: a session takes {format_seconds(saved_line.session_s)} "
    change += f"instead of {format_seconds(source_line.session_s)}"
    if gain <= 0:
        return f"{change}: it never pays."
    return (
        f"{change}; the {format_seconds(once)} of making it are back after "
        f"{format_with_noun(once / gain, 'session')}."
    )


def _make_row(row: TimedVariant, plain_s: float) -> tuple[str, ...]:
    line, loads = row.line, [ns / 1e9 for ns in row.load_ns]
    return (
        line.name,
        format_seconds(line.once_s) if line.once_s else "-",
        format_seconds(line.session_s),
        f"{format_seconds(min(loads))} to {format_seconds(max(loads))}",
        format_seconds(line.inference_s),
        f"{line.inference_s / plain_s:.3f}" if row.against else "1",
        f"{row.ratio} of {row.against}" if row.against else "-",
        f"{row.size / 1e6:.1f}",
    )


def _make_ranges_table(result: Timeline) -> Table:
    rows = []
    for segment in result.cheapest:
        until = "on" if math.isinf(segment.until) else f"to {format_inferences(segment.until)}"
        sessions = max(1, math.ceil(segment.since / result.per_session))
        stretch = f"{format_inferences(segment.since)} {until}"
        rows.append((stretch, format_inferences(sessions), segment.name))
    return Table(("inferences", "from session", "cheapest"), tuple(rows))


def _make_break_even_table(result: Timeline) -> Table:
    none, each = result.find_line(NONE), result.per_session
    rows = []
    for row in result.rows[1:]:
        cells = ("", "")
        if row.against != NONE:
            since = row.estimate_break_even(result.find_line(row.against), each)
            ends = ""
            if since.low != since.high:
                ends = f" [{_format_start(since.low)}, {_format_start(since.high)}]"
            cells = (row.against, (f"{_format_start(since.value)}{ends}"))
        rows.append((row.line.name, _format_start(find_break_even(none, row.line, each)), *cells))
    if result.every is not None:
        rows.append(
            (EVERY_SESSION, _format_start(find_break_even(none, result.every, each)), "", "")
        )
    columns = ("", "break-even vs. no optimization", "next best", "break-even vs. next best")
    return Table(columns, tuple(rows))


def _format_start(since: float) -> str:
    return "never" if math.isinf(since) else "the first" if since < 1 else format_inferences(since)


def format_inferences(value: float) -> str:
    """Write a number of inferences: whole below a million, with its power above."""
    return f"{math.ceil(value):,}" if value < 1e6 else f"{value:.2g}"


def format_with_noun(value: float, noun: str) -> str:
    """Write a number of inferences or sessions with its noun."""
    return f"{format_inferences(value)} {noun}{'' if math.ceil(value) == 1 else 's'}"


def run(request: TimelinePage) -> Timeline:
    """Time every variant, and write the page."""
    out = (
        None if request.out is None else check_page_file(request.out, request.force, request.model)
    )
    result = timing.run(request)
    if out is not None:
        foot = "Sessions are medians over fresh processes, inferences were timed in turns."
        last, plain = result.cheapest[-1], result.find_line(NONE)
        best = result.find_line(last.name)
        since = "from the first" if last.since < 1 else f"from {format_inferences(last.since)} on"
        stays = best.name == plain.name
        pills = [
            Pill("no optimization is cheapest" if stays else f"{best.name} is cheapest, {since}")
        ]
        tiles = [
            Tile(title, format_seconds(now), "" if stays else f"was {format_seconds(before)}")
            for title, before, now in (
                ("an inference", plain.inference_s, best.inference_s),
                ("a session", plain.session_s, best.session_s),
            )
        ]
        tiles.append(Tile("paid once", format_seconds(best.once_s) if best.once_s else "nothing"))
        tiles.append(Tile("a session serves", f"{result.per_session:,.6g}", "inferences"))
        parts = (summarize(pills, tiles), build_timeline_part(result))
        write_text(out, render_page(Path(request.model).name, parts, foot))
    return result


timeline = make_verb(TimelinePage, run, "timeline")


def build_timeline_part(result: Timeline) -> Part:
    """Return a timeline as a part of a report."""
    return Part("timeline", build_timeline_blocks(result))
