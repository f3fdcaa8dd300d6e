"""Measure the accuracy cost and time saved of each region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import print_parts, print_result, print_text

if TYPE_CHECKING:
    from ortune.analysis.sensitivity.run import Sensitivity


@make_command(SensitivityRequest)
def command(request: SensitivityRequest) -> None:
    """Show a row a region, what is worth giving back first."""
    from ortune.reporting.python.sensitivity import run

    sensitivity = run(request)
    plot = None if request.plot is None else str(request.plot)
    print_result({**sensitivity.result(), "plot": plot}, lambda: _print_regions(sensitivity, plot))


def _print_regions(sensitivity: Sensitivity, plot: str | None) -> None:
    from ortune.reporting.precision.regions import build_sensitivity_parts

    print_parts(build_sensitivity_parts(sensitivity, show_all=is_verbose()))
    if plot is not None:
        print_text(f"plot: {plot}")
