"""Say when optimizing and quantizing a model pay back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_items, print_result
from ortune.reporting.python.requests import TimelinePage

if TYPE_CHECKING:
    from ortune.analysis.costs.timeline import Timeline
    from ortune.core.fields import Out


@make_command(TimelinePage)
def command(request: TimelinePage) -> None:
    """Show the table."""
    from ortune.reporting.python.timeline import build_timeline_part, run
    from ortune.reporting.terminal import make_renderables

    timeline = run(request)
    print_result(
        _serialize_timeline(timeline, request.out),
        lambda: print_items(*make_renderables([build_timeline_part(timeline)])),
    )


def _serialize_timeline(timeline: Timeline, out: Out) -> Mapping[str, Any]:
    from ortune.analysis.costs.timeline import find_break_even

    return {
        "model": timeline.model,
        "page": out,
        "quantizer": timeline.quantizer or None,
        "inferences_per_session": timeline.per_session,
        "import_ns": timeline.import_ns,
        "lines": timeline.lines,
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
            for row in timeline.rows
        ],
        "break_even": [
            {
                "from": old.name,
                "to": new.name,
                "inferences": find_break_even(old, new, timeline.per_session),
            }
            for old in timeline.lines
            for new in timeline.lines
            if new is not old
        ],
        "cheapest": timeline.cheapest,
        "notes": timeline.notes,
        "machine": timeline.machine,
        "versions": timeline.versions,
    }
