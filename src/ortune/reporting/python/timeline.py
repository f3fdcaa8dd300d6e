"""The timeline of a model's costs, with a page of it."""

from __future__ import annotations

from pathlib import Path

from ortune.analysis.costs import timeline as timing
from ortune.analysis.costs.timeline import Timeline
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.outputs import free
from ortune.core.request import verb
from ortune.reporting.blocks import Part
from ortune.reporting.html import page
from ortune.reporting.python.requests import TimelinePage
from ortune.reporting.timeline import blocks


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
