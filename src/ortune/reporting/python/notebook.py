"""A study in a notebook: the verdict, its plot, and every plan in a table."""

from __future__ import annotations

from html import escape

from ortune.core.errors import escape_control_chars
from ortune.core.section import Intervals, Table, Text
from ortune.core.study import Study
from ortune.reporting import rows
from ortune.reporting.blocks import gather_parts

_SHOWN = 20
"""Rows of the table."""
_STYLE = """<style>
.ortune { max-width: 860px; }
.ortune .rows { table-layout: fixed; width: 100%; }
.ortune .rows th, .ortune .rows td { text-align: left; background: none; white-space: normal; }
.ortune .rows th { width: 34%; font-weight: 400; }
.ortune .rows th:last-child, .ortune .rows .figure { width: 22%; }
.ortune .rows small { display: block; opacity: .7; }
.ortune .drawn { position: relative; height: 1.6rem; }
.ortune svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.ortune svg { fill: currentColor; font-size: 12px; }
.ortune .grid { stroke: #8884; }
.ortune .reference { stroke: currentColor; }
.ortune .span { stroke: #4a7ab5; stroke-width: 3; }
.ortune .span.win { stroke: #2a8a4a; }
.ortune .span.lose { stroke: #999; }
.ortune .estimate { fill: #4a7ab5; }
.ortune .estimate.win { fill: #2a8a4a; }
.ortune .estimate.open, .ortune .estimate.original { fill: #fff; stroke: #4a7ab5; }
</style>"""


def html(study: Study) -> str:
    """Return the study for a cell's output, everything from it escaped; no script, no request."""
    parts = {part.name: part for part in gather_parts(study)}
    fragments = [_STYLE]
    for block in parts["verdict"].blocks if "verdict" in parts else ():
        if isinstance(block, Text):
            fragments.append(f"<p><b>{escape(block.text)}</b></p>")
            break
    blocks = [block for part in parts.values() for block in part.blocks]
    plot = next((block for block in blocks if isinstance(block, Intervals)), None)
    fragments += [f'<div class="ortune">{rows.draw_intervals(plot)}</div>'] if plot else []
    ranking = parts["ranking"].blocks if "ranking" in parts else ()
    fragments += [_render_table(block) for block in ranking if isinstance(block, Table)]
    return escape_control_chars("\n".join([*fragments, f"<p>run: {escape(study.root)}</p>"]))


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    lines = [
        "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in row)
        for row in table.rows[:_SHOWN]
    ]
    body = "".join(f"<tr>{row}</tr>" for row in lines)
    hidden = len(table.rows) - _SHOWN
    more = f"<p>rows not shown: {hidden}</p>" if hidden > 0 else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"
