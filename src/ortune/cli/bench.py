"""Time models on backends side by side, noise told apart."""

from __future__ import annotations

from dataclasses import KW_ONLY

from ortune.analysis.benchmark.requests import Bench
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer
from ortune.core.request import request


@request
class _Asked(Bench):
    """Options of the command line.

    Attributes:
        wide: Show every figure.
    """

    _: KW_ONLY
    wide: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the rows; exit code 1 when the first one differs from itself."""
    from ortune.analysis.benchmark.bench import run
    from ortune.cli.terminal import bench_engines, bench_tables

    found = run(asked)
    if found.pipelines or found.side_by_side:
        answer(found, lambda: bench_engines.show(found))
    else:
        answer(found, lambda: bench_tables.show(found, wide=asked.wide))
    check = found.self_check
    return NO if check is not None and not check.equal else DONE
