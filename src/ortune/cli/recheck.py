"""Say whether a bundle answers and performs as packed."""

from __future__ import annotations

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, show
from ortune.reporting.python.requests import RecheckPage


@verb(RecheckPage)
def command(asked: RecheckPage) -> int:
    """Show what was replayed; exit code 1 when something changed."""
    from ortune.reporting.python.recheck import parts, run
    from ortune.reporting.terminal import printed

    found = run(asked)
    answer(found, lambda: show(*printed(parts(found))))
    return DONE if found.good else NO
