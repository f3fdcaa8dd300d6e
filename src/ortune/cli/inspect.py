"""Say what a model is made of, and what is odd about it."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING

from ortune.analysis.inspection.requests import Inspect
from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.inspection.inspect import Inspection


@request
class _Asked(Inspect):
    """Options of the command line.

    Attributes:
        nodes: List every node: FLOPs, bytes, FLOPs per byte.
        regions: List the parts of the model likewise.
        tensors: List the biggest weights and activations.
    """

    _: KW_ONLY
    nodes: bool = False
    regions: bool = False
    tensors: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show a screen, and the tables asked for."""
    from ortune.analysis.inspection.inspect import run
    from ortune.cli.terminal import inspect_tables

    found = run(asked)
    wanted = {"nodes": asked.nodes, "regions": asked.regions, "tensors": asked.tensors}
    answer(_json(found), lambda: inspect_tables.show(found, wanted, verbose()))
    return DONE


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
