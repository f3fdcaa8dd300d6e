"""A study in a notebook: the verdict, its plot, and every plan in a table."""

from __future__ import annotations

from html import escape

from ortune.core import wording
from ortune.core.section import Bar, Bars, Block, Lines, Scatter, Table, Text
from ortune.core.study import Study
from ortune.reporting import bars, lines, scatter
from ortune.reporting.blocks import gather

_SHOWN = 20
"""Rows of the table."""
_STYLE = """<style>
.ortune-plot { max-width: 760px; }
.ortune-plot svg { width: 100%; height: auto; font: 13px sans-serif; fill: currentColor; }
.ortune-plot path.grid { stroke: #8884; }
.ortune-plot path.axis, .ortune-plot polyline { stroke: currentColor; fill: none; }
.ortune-plot .middle { text-anchor: middle; }
.ortune-plot .end { text-anchor: end; }
.ortune-plot .bar, .ortune-plot .s0 { fill: #4a7ab5; }
.ortune-plot .win { fill: #2a8a4a; }
.ortune-plot .lose { fill: #999; }
.ortune-plot .original { fill: #c33; }
</style>"""


def html(study: Study) -> str:
    """Return the study for a cell's output, everything from it escaped; no script, no request."""
    parts = {part.name: part for part in gather(study)}
    made = [_STYLE]
    for block in parts["verdict"].blocks if "verdict" in parts else ():
        if isinstance(block, Text):
            made.append(f"<p><b>{escape(block.text)}</b></p>")
            break
    blocks = [block for part in parts.values() for block in part.blocks]
    drawn = next((svg for block in blocks if (svg := _plot(block))), "") or _speeds(study)
    made += [f'<div class="ortune-plot">{drawn}</div>'] if drawn else []
    ranking = parts["ranking"].blocks if "ranking" in parts else ()
    made += [_table(block) for block in ranking if isinstance(block, Table)]
    return "\n".join([*made, f"<p>run: {escape(study.root)}</p>"])


def _speeds(study: Study) -> str:
    """Draw how fast every plan was: there is no front where nothing was accepted."""
    timed = [(trial, study.speedup(trial)) for trial in wording.latest(study)]
    known = sorted((one for one in timed if one[1].value > 0), key=lambda one: -one[1].value)
    drawn = [
        Bar(str(trial.plan), (speed.value,), f"{wording.times(speed)} {wording.span(speed)}")
        for trial, speed in known[:_SHOWN]
    ]
    return bars.svg(Bars("times as fast as the original", tuple(drawn))) if drawn else ""


def _plot(block: Block) -> str:
    match block:
        case Scatter():
            return scatter.svg(block)
        case Bars():
            return bars.svg(block)
        case Lines():
            return lines.svg(block)
    return ""


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = [
        "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in row)
        for row in table.rows[:_SHOWN]
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    left = len(table.rows) - _SHOWN
    more = f"<p>rows not shown: {left}</p>" if left > 0 else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"
