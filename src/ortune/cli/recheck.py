"""Say whether a bundle answers and performs as packed."""

from __future__ import annotations

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_items, print_result
from ortune.reporting.python.requests import RecheckPage


@make_command(RecheckPage)
def command(request: RecheckPage) -> int:
    """Show what was replayed; exit code 1 when something changed."""
    from ortune.reporting.python.recheck import build_recheck_parts, run
    from ortune.reporting.terminal import make_renderables

    result = run(request)
    print_result(result, lambda: print_items(*make_renderables(build_recheck_parts(result))))
    return DONE if result.good else NO
