"""Say what a model is made of, what is odd about it, and who would run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import _inspected, shared

if TYPE_CHECKING:
    from ortune.analysis.inspection.inspect import Inspection


@shared.verb(shared.Verb)
@shared.model
@click.option(
    "--on",
    metavar="BACKENDS",
    default="",
    help='Ask these backends, such as "cpu,openvino", which nodes they would take.',
)
@shared.shapes
@click.option(
    "--weights/--no-weights",
    default=None,
    help="Read all weights for the digest and for rules about values. Default: below 500 MB.",
)
@shared.custom_ops
@click.option("--nodes", is_flag=True, help="List every node: FLOPs, bytes, FLOPs per byte.")
@click.option("--regions", is_flag=True, help="List the parts of the model likewise.")
@click.option("--tensors", is_flag=True, help="List the biggest weights and activations.")
def command(
    model: Path,
    on: str,
    shapes: tuple[str, ...],
    weights: bool | None,
    custom_ops: tuple[str, ...],
    nodes: bool,
    regions: bool,
    tensors: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Say what MODEL is made of, what is odd about it, and who would run it.

    Nothing is run and, above 500 MB, no weights are read. FLOPs and bytes are of one run;
    dynamic dimensions count as 1 unless --shape says otherwise. --on loads the model in a worker
    for each backend. -v lists everything; --json holds everything always.

    \b
    Example:
      ortune inspect model.onnx
      ortune inspect model.onnx --shape x:1x3x640x640 --regions --on cpu,openvino
    """
    from ortune.analysis.inspection.inspect import inspect

    asked = shared.equipped(on, custom_ops) if on else ""
    found = inspect(model, on=asked, shapes=shared.shape_map(shapes), weights=weights)
    wanted = {"nodes": nodes, "regions": regions, "tensors": tensors}
    shared.answer(json_to, _json(found), lambda: _inspected.show(found, wanted, verbose))
    return 0


def _json(found: Inspection) -> dict[str, object]:
    """Return every field, with what nodes and regions compute from theirs."""
    from dataclasses import asdict, fields

    made: dict[str, object] = {one.name: getattr(found, one.name) for one in fields(found)}
    for name in ("nodes", "regions"):
        rows = getattr(found, name)
        made[name] = [
            {**asdict(row), "moved": row.moved, "intensity": row.intensity} for row in rows
        ]
    return made
