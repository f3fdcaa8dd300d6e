"""Who reads a value."""

from __future__ import annotations

import onnx_ir as ir


def is_read(value: ir.Value) -> bool:
    """Say whether a node reads a value, or its graph puts it out."""
    return bool(value.uses()) or value.is_graph_output()


def has_single_use(value: ir.Value) -> bool:
    """Say whether a value is read in one place only, by a node."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, of whatever operator; None where there is none."""
    return next(iter(value.uses())).node if has_single_use(value) else None
