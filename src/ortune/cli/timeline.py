"""What optimizing and quantizing cost over a model's life, and from when on they pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.analysis.costs.requests import TimelineRequest
from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, show
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.fields import Out
from ortune.core.outputs import free
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.costs.timeline import Timeline


@request
class _Asked(TimelineRequest):
    """Options of the command line.

    Attributes:
        out: A page with the table and the chart (.html).
        force: Overwrite an existing output.
    """

    _: KW_ONLY
    out: Out = None
    force: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the table, and write the page."""
    from ortune.analysis.costs.timeline import run
    from ortune.reporting.blocks import Part
    from ortune.reporting.html import page
    from ortune.reporting.terminal import printed
    from ortune.reporting.timeline import blocks

    out = None if asked.out is None else free(asked.out, asked.force, asked.model)
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise OrtuneError(f"cannot write a page as '{out.name}'", fix="end it in .html")
    found = run(asked)
    part = Part("timeline", blocks(found))
    if out is not None:
        foot = "Sessions are medians over fresh processes, inferences were timed in turns."
        write_text(out, page(Path(asked.model).name, [part], foot))
    answer(_json(found, out), lambda: show(*printed([part])))
    return DONE


def _json(found: Timeline, out: Path | None) -> Mapping[str, Any]:
    from ortune.analysis.costs.breakeven import pays_from

    return {
        "model": found.model,
        "page": out,
        "quantizer": found.quantizer or None,
        "inferences_per_session": found.per_session,
        "import_ns": found.import_ns,
        "lines": found.lines,
        "measured": [
            {
                "name": row.line.name,
                "load_ns": row.load_ns,
                "first_ns": row.first_ns,
                "against": row.against or None,
                "ratio": row.ratio,
                "equal": row.equal,
                "session_equal": row.session_equal,
                "size": row.size,
            }
            for row in found.rows
        ],
        "break_even": [
            {
                "from": old.name,
                "to": new.name,
                "inferences": pays_from(old, new, found.per_session),
            }
            for old in found.lines
            for new in found.lines
            if new is not old
        ],
        "cheapest": found.cheapest,
        "notes": found.notes,
        "machine": found.machine,
        "versions": found.versions,
    }
