"""What optimizing and quantizing cost over a model's life, and from when on they pay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortune.cli import shared
from ortune.core.errors import OrtuneError

if TYPE_CHECKING:
    from ortune.analysis.costs.timeline import Timeline


@shared.verb(shared.Verb)
@shared.model
@shared.data
@shared.shapes
@shared.ranges
@click.option("--step", metavar="SPEC", default="", help="The quantizer, such as int8-dynamic.")
@shared.on("cpu")
@shared.custom_ops
@click.option(
    "--inferences-per-session",
    type=float,
    default=1000,
    show_default=True,
    metavar="N",
    help="Served by one session before the next is started.",
)
@click.option("--starts", type=int, default=9, show_default=True, help="Fresh processes each.")
@click.option(
    "--seconds",
    type=shared.Finite(min=0.1),
    default=20.0,
    show_default=True,
    help="Time spent on timing inferences; every line takes some seconds at least.",
)
@shared.output("A page with the table and the chart (.html).")
@shared.force
def command(
    model: Path,
    data: str | None,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    step: str,
    on: str,
    custom_ops: tuple[str, ...],
    inferences_per_session: float,
    starts: int,
    seconds: float,
    out: Path | None,
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Time MODEL as it came, graph-optimized, quantized and both: once, a session, an inference.

    Files that onnxruntime optimized offline, as ONNX and as .ort, stand beside optimizing at load.
    Without --data the inputs are made up: the times hold, a quantized model's answers are not
    judged.

    \b
    Example:
      ortune timeline model.onnx --data samples/ --inferences-per-session 500 -o timeline.html
    """
    from ortune.analysis.costs.timeline import timeline
    from ortune.cli.terminal import progress
    from ortune.reporting.blocks import Part
    from ortune.reporting.html import page
    from ortune.reporting.terminal import printed
    from ortune.reporting.timeline import blocks

    if out is not None:
        shared.free(out, force, model)
        if out.suffix.lower() not in (".html", ".htm"):
            raise OrtuneError(f"cannot write a page as '{out.name}'", fix="end it in .html")
    found = timeline(
        model,
        data=data,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        step=step,
        on=shared.equipped(on, custom_ops),
        inferences_per_session=inferences_per_session,
        starts=starts,
        seconds=seconds,
        sink=progress.lines(verbose),
    )
    part = Part("timeline", blocks(found))
    if out is not None:
        foot = "Sessions are medians over fresh processes, inferences were timed in turns."
        out.write_text(page(model.name, [part], foot), encoding="utf-8")
    shared.answer(json_to, answer(found, out), lambda: shared.show(*printed([part])))
    return 0


def answer(found: Timeline, out: Path | None) -> Mapping[str, Any]:
    """Return the JSON object."""
    from ortune.analysis.costs.breakeven import pays_from

    return {
        "model": found.model,
        "page": out,
        "quantizer": found.quantizer or None,
        "inferences_per_session": found.per_session,
        "import_ns": found.import_ns,
        "lines": [
            {"name": line.name, **_costs(line.once_s, line.session_s, line.inference_s)}
            for line in found.lines
        ],
        "measured": [
            {
                "name": row.line.name,
                "load_ns": row.load_ns,
                "first_ns": row.first_ns,
                "against": row.against or None,
                "ratio": row.ratio,
                "equal": row.equal,
                "session_equal": row.session_equal,
                "size": row.size,
            }
            for row in found.rows
        ],
        "break_even": [
            {"from": old.name, "to": new.name, "inferences": _finite(pays)}
            for old in found.lines
            for new in found.lines
            if new is not old
            for pays in [pays_from(old, new, found.per_session)]
        ],
        "cheapest": [
            {"since": segment.since, "until": _finite(segment.until), "name": segment.name}
            for segment in found.cheapest
        ],
        "notes": found.notes,
        "machine": found.machine,
        "versions": found.versions,
    }


def _costs(once_s: float, session_s: float, inference_s: float) -> Mapping[str, float]:
    return {"once_s": once_s, "session_s": session_s, "inference_s": inference_s}


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
