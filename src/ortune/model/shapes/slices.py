"""What a Slice cuts, in either spelling: by attributes before opset 10, by inputs since."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ortune.model.graph.edit import attribute
from ortune.model.graph.spec import shape_of
from ortune.model.shapes.known_values import Item, Known

_END = 2**31 - 1
"""From here on an end means the end of the axis: exporters write INT32_MAX or more."""

_MOST = 2**40
"""No tensor has so many elements, so an end that would need them is beyond the axis as well."""


class AxisSlice(NamedTuple):
    """One axis of a Slice; start and end as written, the axis from the front."""

    axis: int
    start: Item
    end: Item
    step: Item


def cuts(node: ir.Node, known: Known, opset: int) -> list[AxisSlice] | None:
    """Return what a Slice cuts; None where its axes are not known, or the rank of its input."""
    shape = shape_of(node.inputs[0])
    if shape is None:
        return None
    rows = _attributes(node) if opset < 10 else _inputs(node, known)
    if rows is None:
        return None
    found = []
    for start, end, axis, step in zip(*rows, strict=False):
        if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            return None
        found.append(AxisSlice(axis % len(shape), start, end, step))
    return found


def sliced(shape: Sequence[Item], found: Sequence[AxisSlice]) -> list[Item]:
    """Return the shape behind a Slice, as far as it follows by name.

    ``x[:n]`` of an axis of 512 has the size ``min(n, 512)``; `bounded` knows that name.
    """
    out = list(shape)
    for axis, start, end, step in found:
        dim = shape[axis]
        if start != 0 or step != 1:
            out[axis] = None
        elif not reaches(shape, axis, end):
            name = isinstance(end, str) and isinstance(dim, int)
            out[axis] = f"min({end}, {dim})" if name else None
    return out


def reaches(shape: Sequence[Item], axis: int, end: Item) -> bool:
    """Say whether a cut from the front to `end` is the whole axis."""
    dim = shape[axis]
    if dim is not None and end == dim:
        return True
    if not isinstance(end, int) or end < 0:
        return False
    sizes = (dim for at, dim in enumerate(shape) if at != axis)
    others = math.prod(size for size in sizes if isinstance(size, int))
    return end >= _END or (isinstance(dim, int) and end >= dim) or end * others >= _MOST


def bounded(name: Item, item: Item) -> bool:
    """Say whether `item` is the size that ``x[:name]`` has."""
    return isinstance(name, str) and isinstance(item, str) and item.startswith(f"min({name}, ")


def _attributes(node: ir.Node) -> tuple[Sequence[Item], ...]:
    starts, ends = attribute(node, "starts", ()), attribute(node, "ends", ())
    return starts, ends, attribute(node, "axes", range(len(starts))), (1,) * len(starts)


def _inputs(node: ir.Node, known: Known) -> tuple[Sequence[Item], ...] | None:
    given = [known.part(value) for value in node.inputs[1:]]
    absent = [value is None for value in node.inputs[1:]]
    unknown = [g is None and not a for g, a in zip(given, absent, strict=True)]
    if len(given) < 2 or any(unknown[2:3]):
        return None
    size = next((len(part.items) for part in given if part is not None), None)
    if size is None:
        return None
    rows: list[Sequence[Item]] = [(None,) * size if g is None else g.items for g in given]
    axes = rows[2] if len(rows) > 2 and given[2] is not None else range(size)
    steps = rows[3] if len(rows) > 3 and not absent[3] else (1,) * size
    return rows[0], rows[1], axes, steps
