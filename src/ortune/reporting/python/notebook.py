"""A study in a notebook: the verdict, its plot, and every plan in a table."""

from html import escape
from typing import Any

from ortune.core.errors import escape_control_chars
from ortune.core.section import Intervals, Table, Text
from ortune.core.study import Study
from ortune.reporting.blocks import gather_parts
from ortune.reporting.charts.draw import draw_for_file

_SHOWN = 20
"""Rows of the table."""
_MIME = "application/vnd.vegalite.v5+json"
"""What JupyterLab and VS Code draw; ours uses nothing that came later."""


def display(study: Study) -> None:
    """Show the answer and every plan, then the plot of all of them."""
    from IPython.core import display_functions

    publish: Any = display_functions.publish_display_data
    publish({"text/html": html(study), "text/plain": repr(study)})
    blocks = [block for part in gather_parts(study) for block in part.blocks]
    plot = next((block for block in blocks if isinstance(block, Intervals)), None)
    if plot is not None:
        publish({_MIME: draw_for_file(plot), "text/plain": ""})


def html(study: Study) -> str:
    """Return the study for a cell's output, everything from it escaped; no script, no request."""
    parts = {part.name: part for part in gather_parts(study)}
    verdict = parts["verdict"].blocks if "verdict" in parts else ()
    answer = next((block.text for block in verdict if isinstance(block, Text)), "")
    ranking = parts["ranking"].blocks if "ranking" in parts else ()
    tables = [_render_table(block) for block in ranking if isinstance(block, Table)]
    fragments = [f"<p><b>{escape(answer)}</b></p>", *tables, f"<p>run: {escape(study.root)}</p>"]
    return escape_control_chars("\n".join(fragments))


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
