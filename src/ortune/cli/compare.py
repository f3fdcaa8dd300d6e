"""Compare saved runs of bench and loadtest, row by row."""

from __future__ import annotations

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, show
from ortune.reporting.python.requests import CompareFiles


@verb(CompareFiles)
def command(asked: CompareFiles) -> int:
    """Show the rows; exit code 1 when one regressed."""
    from ortune.reporting.python.compare import parts, run
    from ortune.reporting.terminal import printed

    found = run(asked)
    answer(found, lambda: show(*printed(parts(found))))
    return NO if found.regressions else DONE
