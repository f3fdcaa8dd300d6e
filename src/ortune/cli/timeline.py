"""Say when optimizing and quantizing a model pay back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, show
from ortune.reporting.python.requests import TimelinePage

if TYPE_CHECKING:
    from ortune.analysis.costs.timeline import Timeline
    from ortune.core.fields import Out


@verb(TimelinePage)
def command(asked: TimelinePage) -> None:
    """Show the table."""
    from ortune.reporting.python.timeline import part, run
    from ortune.reporting.terminal import printed

    found = run(asked)
    answer(_json(found, asked.out), lambda: show(*printed([part(found)])))


def _json(found: Timeline, out: Out) -> Mapping[str, Any]:
    from ortune.analysis.costs.timeline import pays_from

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
