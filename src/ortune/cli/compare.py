"""Compare saved runs of bench and loadtest, row by row."""

from __future__ import annotations

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_parts, print_result
from ortune.reporting.python.requests import CompareFiles


@make_command(CompareFiles)
def command(request: CompareFiles) -> int:
    """Show the rows; exit code 1 when one regressed."""
    from ortune.reporting.python.compare import build_comparison_parts, run

    result = run(request)
    print_result(result, lambda: print_parts(build_comparison_parts(result)))
    return NO if result.regressions else DONE
