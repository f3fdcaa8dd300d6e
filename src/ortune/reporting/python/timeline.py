"""The timeline of a model's costs, with a page of it."""

from __future__ import annotations

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
    Timed,
    Timeline,
    pays_from,
    total,
)
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.outputs import free
from ortune.core.request import verb
from ortune.core.section import Block, Heading, Line, Lines, Point, Table, Text
from ortune.reporting.blocks import Part
from ortune.reporting.html import page
from ortune.reporting.python.requests import TimelinePage

_STEPS = 48
_LOOSE = 1.3
"""Ends of a ratio's interval that far apart leave the question open."""
_DRAWN = (NONE, GRAPH, QUANTIZED, BOTH, f"{BOTH}, {OFFLINE}", EVERY_SESSION)


def blocks(found: Timeline) -> tuple[Block, ...]:
    """Return the table, the ranges, the break-evens and the chart."""
    rows = [_row(row) for row in found.rows]
    if every := found.every:
        once, each = seconds(every.session_s), seconds(every.inference_s)
        rows.append((every.name, "-", once, "-", each, "-", "-"))
    times = ("once", "a session", "load, least to most", "an inference", "ratio [99 %]")
    # Draw seconds over inferences, both logarithmic: from one to ten times the last crossing.
    named = {*_DRAWN, *(segment.name for segment in found.cheapest)}
    starts = [(one.since, one.name) for one in found.cheapest if one.since > 0]
    last = 10 * max([*(n for n, _ in starts), found.per_session, 1000.0])
    places = [last ** (step / _STEPS) for step in range(_STEPS + 1)]

    def spent(line: CostLine, n: float) -> tuple[float, float]:
        return n, total(line, n, found.per_session)

    return (
        Heading("Cost over the model's life"),
        Table(("", *times, "MB"), tuple(rows)),
        Text(
            f"A session serves {found.per_session:g} inferences. Importing the runtime takes "
            f"{seconds(median(found.import_ns) / 1e9)} more in every process, whatever it loads. "
            "Ratios are latencies: of a saved file to what it was saved from, of both and of the "
            "cleaned model to graph optimization, else to none. Where no difference is beyond the "
            "noise, the figure compared with stands."
        ),
        Heading("The cheapest"),
        _ranges(found),
        Lines(
            "inferences served",
            "seconds spent in all",
            tuple(
                Line(line.name, tuple(spent(line, n) for n in places))
                for line in found.lines
                if line.name in named
            ),
            tuple(
                Point(*spent(found.line(name), n), f"{count(n)}: {name}")
                for n, name in starts
                if n >= 1
            ),
            log_x=True,
            log_y=True,
        ),
        Heading("Break-even"),
        _pays(found),
        *(Text(text) for text in remarks(found)),
        *([Heading("Notes")] if found.notes else []),
        *(Text(text) for text in found.notes),
    )


def remarks(found: Timeline) -> list[str]:
    """Say what quantizing in every session costs, what saved files bring, and what is open."""
    texts = []
    rows = {row.line.name: row.line for row in found.rows}
    if found.every is not None:
        texts.append(_every(found.every, rows[GRAPH]))
    kinds = [(name, kind) for name in (GRAPH, BOTH) for kind in (OFFLINE, ORT)]
    texts += [
        _saved(saved, rows[name], kind)
        for name, kind in kinds
        if (saved := rows.get(f"{name}, {kind}")) is not None
    ]
    if loose := [row.line.name for row in found.rows if row.ratio.high > _LOOSE * row.ratio.low]:
        texts.append(
            f"Known only loosely, see their ratios: {'; '.join(loose)}. "
            "Give more --seconds, or a quieter machine."
        )
    return texts


def _every(every: CostLine, graph: CostLine) -> str:
    """Return from how many inferences a session on it pays to quantize within the session."""
    gain = graph.inference_s - every.inference_s
    more = every.session_s - graph.session_s
    text = f"Quantizing in every session costs {seconds(more)} a session"
    if gain <= 0:
        return f"{text} and an inference is no faster: it never pays."
    return f"{text}: it pays from {counted(more / gain, 'inference')} in one session on."


def _saved(saved: CostLine, loaded: CostLine, kind: str) -> str:
    gain, once = loaded.session_s - saved.session_s, saved.once_s - loaded.once_s
    if gain == 0:
        return f"{loaded.name}, {kind}: sessions start no quicker beyond the noise."
    change = f"{loaded.name}, {kind}: a session takes {seconds(saved.session_s)} "
    change += f"instead of {seconds(loaded.session_s)}"
    if gain <= 0:
        return f"{change}: it never pays."
    return (
        f"{change}; the {seconds(once)} of making it are back after "
        f"{counted(once / gain, 'session')}."
    )


def _row(row: Timed) -> tuple[str, ...]:
    line, loads = row.line, [ns / 1e9 for ns in row.load_ns]
    return (
        line.name,
        seconds(line.once_s) if line.once_s else "-",
        seconds(line.session_s),
        f"{seconds(min(loads))} to {seconds(max(loads))}",
        seconds(line.inference_s),
        str(row.ratio) if row.against else "1",
        f"{row.size / 1e6:.1f}",
    )


def _ranges(found: Timeline) -> Table:
    rows = []
    for segment in found.cheapest:
        until = "on" if math.isinf(segment.until) else f"to {count(segment.until)}"
        sessions = max(1, math.ceil(segment.since / found.per_session))
        rows.append((f"{count(segment.since)} {until}", count(sessions), segment.name))
    return Table(("inferences", "sessions, from", "cheapest"), tuple(rows))


def _pays(found: Timeline) -> Table:
    none, each = found.line(NONE), found.per_session
    rows = []
    for row in found.rows[1:]:
        cells = ("", "")
        if row.against != NONE:
            since = row.pays(found.line(row.against), each)
            ends = f" [{_from(since.low)}, {_from(since.high)}]" if since.low != since.high else ""
            cells = (row.against, (f"{_from(since.value)}{ends}"))
        rows.append((row.line.name, _from(pays_from(none, row.line, each)), *cells))
    if found.every is not None:
        rows.append((EVERY_SESSION, _from(pays_from(none, found.every, each)), "", ""))
    columns = ("cheaper from this many inferences on", "than none", "than", "from")
    return Table(columns, tuple(rows))


def _from(since: float) -> str:
    return "never" if math.isinf(since) else "the first" if since < 1 else count(since)


def seconds(value: float) -> str:
    """Write seconds with a unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def count(value: float) -> str:
    """Write a number of inferences: whole below a million, with its power above."""
    return f"{math.ceil(value):,}" if value < 1e6 else f"{value:.2g}"


def counted(value: float, noun: str) -> str:
    """Write a number of inferences or sessions with its noun."""
    return f"{count(value)} {noun}{'' if math.ceil(value) == 1 else 's'}"


def run(asked: TimelinePage) -> Timeline:
    """Time every variant, and write the page."""
    out = None if asked.out is None else free(asked.out, asked.force, asked.model)
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise OrtuneError(f"cannot write a page as '{out.name}'", fix="end it in .html")
    found = timing.run(asked)
    if out is not None:
        foot = "Sessions are medians over fresh processes, inferences were timed in turns."
        write_text(out, page(Path(asked.model).name, [part(found)], foot))
    return found


timeline = verb(TimelinePage, run, "timeline")


def part(found: Timeline) -> Part:
    """Return a timeline as a part of a report."""
    return Part("timeline", blocks(found))
