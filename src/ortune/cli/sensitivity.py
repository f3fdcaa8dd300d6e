"""Measure what each region costs in accuracy, and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, say, show

if TYPE_CHECKING:
    from ortune.analysis.sensitivity.run import Sensitivity


@verb(SensitivityRequest)
def command(asked: SensitivityRequest) -> None:
    """Show a row a region, what is worth giving back first."""
    from ortune.reporting.python.sensitivity import run

    found = run(asked)
    plot = None if asked.plot is None else str(asked.plot)
    answer({**found.result(), "plot": plot}, lambda: _show(found, plot))


def _show(found: Sensitivity, plot: str | None) -> None:
    from ortune.reporting.precision.regions import sensitivity_parts
    from ortune.reporting.terminal import printed

    show(*printed(sensitivity_parts(found, every=verbose())))
    if plot is not None:
        say(f"plot: {plot}")
