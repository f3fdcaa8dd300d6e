"""Compare saved runs of bench and loadtest, row by row."""

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_parts, print_result
from ortune.cli.terminal.page import PageOptions, require_page, save_result_page
from ortune.core.request import request
from ortune.reporting.python.requests import CompareFiles


@request
class _Options(PageOptions, CompareFiles):
    """Options of the command line."""


@make_command(_Options)
def command(options: _Options) -> int:
    """Show the rows; exit code 1 when one regressed."""
    from ortune.reporting.python.compare import build_comparison_parts, run

    require_page(options)
    result = run(options)
    save_result_page(options, result)
    print_result(result, lambda: print_parts(build_comparison_parts(result)))
    return NO if result.regressions else DONE
