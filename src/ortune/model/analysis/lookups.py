"""Which integer inputs pick rows of a table, how many there are, and what tables are stored."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortune.model.graph.edit import attribute, const_tensor
from ortune.model.graph.match import label
from ortune.model.graph.spec import shape_of
from ortune.model.graph.values import weights

_SHAPING = "Expand Flatten Reshape Slice Split Squeeze Tile Transpose Unsqueeze"
_PASSED_ON = frozenset(["Cast", "Concat", "Identity", *_SHAPING.split()])
"""Operators that hand on their first input's integers, or those of every input."""
_AXES = {"Gather": "axis", "GatherElements": "axis"}
_PACKED = "com.microsoft::GatherBlockQuantized"
_PICKS = frozenset(["Gather", _PACKED])
_EMBED = "com.microsoft::EmbedLayerNormalization"
_EMBED_TABLES = {0: 2, 1: 4}
"""Input of an EmbedLayerNormalization that holds indices -> the input that is their table."""


def table_rows(model: ir.Model) -> dict[str, int]:
    """Return input -> number of rows of the smallest table that its values index.

    Only inputs whose integers reach the indices unchanged; tables may be computed, but of a known
    size. Calls of local functions are not looked into.
    """
    found = {}
    for value in model.graph.inputs:
        whole = value.dtype is not None and value.dtype.is_integer()
        sizes = list(_sizes(value)) if whole else []
        if sizes:
            found[str(value.name)] = min(sizes)
    return found


def table_bytes(model: ir.Model) -> int:
    """Return the bytes of weights that are used as tables alone: their rows are picked."""
    return sum(tensor.nbytes for value, tensor in weights(model) if _picked_from(value))


def _picked_from(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(place == 0 and label(node) in _PICKS for node, place in uses)


def _sizes(value: ir.Value) -> Iterator[int]:
    ahead, seen = [value], {value}
    while ahead:
        for node, place in ahead.pop().uses():
            if (size := _rows(node, place)) is not None:
                yield size
            moved = node.op_type in _PASSED_ON and not node.domain
            if moved and (place == 0 or node.op_type == "Concat"):
                more = [one for one in node.outputs if one not in seen]
                seen.update(more)
                ahead += more


def _rows(node: ir.Node, place: int) -> int | None:
    """Return the rows that an input of a node picks from; None when it is no such input."""
    op = label(node)
    if op == _EMBED and place in _EMBED_TABLES and _EMBED_TABLES[place] < len(node.inputs):
        return _size(node.inputs[_EMBED_TABLES[place]], 0)
    if place != 1 or op not in (*_AXES, _PACKED):
        return None
    return _size(node.inputs[0], attribute(node, _AXES.get(op, "gather_axis"), 0))


def _size(table: ir.Value | None, axis: int) -> int | None:
    """Return the length of a table along an axis, found behind changes of its type."""
    while table is not None and (node := table.producer()) is not None:
        if node.op_type not in ("Cast", "DequantizeLinear"):
            break
        table = node.inputs[0]
    tensor = const_tensor(table)
    shape = tuple(tensor.shape) if tensor is not None else shape_of(table)
    if not shape or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size > 0 else None
