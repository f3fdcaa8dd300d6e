"""What regions cost and save, with a picture of it."""

from __future__ import annotations

from pathlib import Path

from ortune.analysis.sensitivity import run as measuring
from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.analysis.sensitivity.run import Sensitivity
from ortune.core.atomic_write import write_text
from ortune.core.outputs import free
from ortune.core.request import verb
from ortune.reporting.html import page
from ortune.reporting.precision import drawing
from ortune.reporting.precision.regions import sensitivity_parts, sensitivity_picture

_FOOT = (
    "Accuracy costs are of a region alone, all others in float; the time saved is its part of the "
    "original's profile, as much faster as the plan is."
)


def run(asked: SensitivityRequest) -> Sensitivity:
    """Measure, and draw."""
    plot = None if asked.plot is None else free(asked.plot, asked.force, asked.model)
    if plot is not None:
        drawing.demand_writable(plot)
    found = measuring.run(asked)
    if plot is not None:
        draw(found, plot)
    return found


sensitivity = verb(SensitivityRequest, run)


def draw(found: Sensitivity, plot: Path) -> Path:
    """Write the picture, in a page with the table where the name ends in .html."""
    if plot.suffix.lower() in (".html", ".htm"):
        name = f"{Path(found.model).name}: {found.precision} by {found.by}"
        return write_text(plot, page(name, sensitivity_parts(found, every=True), _FOOT))
    return drawing.write(sensitivity_picture(found), plot, force=True)
