"""What regions cost and save, with a picture of it."""

from pathlib import Path

from ortune.analysis.sensitivity import run as measuring
from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.core.atomic_write import write_text
from ortune.core.outputs import check_output_file
from ortune.core.request import make_verb
from ortune.reporting.charts.draw import require_plot_suffix, write_plot
from ortune.reporting.html import render_page
from ortune.reporting.precision.regions import (
    build_sensitivity_parts,
    draw_sensitivity,
    summarize_sensitivity,
)

_FOOT = (
    "Accuracy cost: with this region alone at the lower precision, all others in float. Time "
    "saved: the region's share of the original's profile, scaled by the plan's speed-up."
)


def run(request: SensitivityRequest) -> measuring.Sensitivity:
    """Measure, and draw."""
    plot = None
    if request.plot is not None:
        plot = check_output_file(request.plot, request.force, request.model)
        require_plot_suffix(plot)
    result = measuring.run(request)
    if plot is not None:
        write_picture(result, plot)
    return result


sensitivity = make_verb(SensitivityRequest, run)


def write_picture(result: measuring.Sensitivity, plot: Path) -> Path:
    """Write the picture, in a page with the table where the name ends in .html."""
    if plot.suffix.lower() in (".html", ".htm"):
        name = f"{Path(result.model).name}: {result.precision} by {result.by}"
        parts = (summarize_sensitivity(result), *build_sensitivity_parts(result, show_all=True))
        return write_text(plot, render_page(name, parts, _FOOT))
    return write_plot(draw_sensitivity(result), plot)
