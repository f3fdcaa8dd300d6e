"""Apply steps to a model, in the order given, each checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ortune.analysis.conversion.requests import Apply
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, say, size, table

if TYPE_CHECKING:
    from ortune.analysis.conversion.apply import Applied


@verb(Apply)
def command(asked: Apply) -> int:
    """Show what each step did; exit code 1 when one was rolled back."""
    from ortune.analysis.conversion.apply import run
    from ortune.cli.terminal import progress

    with progress.held(asked.sink, verbose=verbose()) as sink:
        found = run(replace(asked, sink=sink))
    answer(found, lambda: _show(found))
    return DONE if all(edit.kept for edit in found.edits) else NO


def _show(found: Applied) -> None:
    rows = []
    for edit in found.edits:
        state = edit.note if not edit.kept else ("nothing to do" if not edit.count else "")
        rows.append((edit.step, edit.count, f"{edit.seconds:.1f}", state))
    table(("step", "edits>", "s>", ""), rows)
    for edit in found.edits:
        if edit.kept and edit.note:
            say(f"{edit.step}: {edit.note}")
    say(f"{found.output}: {size(found.bytes_before)} before, {size(found.bytes_after)} after")
