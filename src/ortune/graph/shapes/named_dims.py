"""Shapes that follow from dimensions known by name, which onnx's own rules lose."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from ortune.graph.ir.edit import read_attribute, shape_of
from ortune.graph.shapes.known_values import Item, Partial, SymbolicValues

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


def read_slices(node: ir.Node, values: SymbolicValues, opset: int) -> list[AxisSlice] | None:
    """Return what a Slice cuts; None where its axes are not known, or the rank of its input."""
    shape = shape_of(node.inputs[0])
    if shape is None:
        return None
    rows = _read_slice_attributes(node) if opset < 10 else _read_slice_inputs(node, values)
    if rows is None:
        return None
    slices = []
    for start, end, axis, step in zip(*rows, strict=False):
        if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            return None
        slices.append(AxisSlice(axis % len(shape), start, end, step))
    return slices


def is_whole_axis(shape: Sequence[Item], axis: int, end: Item) -> bool:
    """Say whether a cut from the front to `end` is the whole axis."""
    dim = shape[axis]
    if dim is not None and end == dim:
        return True
    if not isinstance(end, int) or end < 0:
        return False
    sizes = (dim for at, dim in enumerate(shape) if at != axis)
    other_size = math.prod(size for size in sizes if isinstance(size, int))
    return end >= _END or (isinstance(dim, int) and end >= dim) or end * other_size >= _MOST


def is_bounded_by(name: Item, item: Item) -> bool:
    """Say whether `item` is the size that ``x[:name]`` has."""
    return isinstance(name, str) and isinstance(item, str) and item.startswith(f"min({name}, ")


def _read_slice_attributes(node: ir.Node) -> tuple[Sequence[Item], ...]:
    starts, ends = read_attribute(node, "starts", ()), read_attribute(node, "ends", ())
    return starts, ends, read_attribute(node, "axes", range(len(starts))), (1,) * len(starts)


def _read_slice_inputs(node: ir.Node, values: SymbolicValues) -> tuple[Sequence[Item], ...] | None:
    parts = [values.read_partial(value) for value in node.inputs[1:]]
    absent = [value is None for value in node.inputs[1:]]
    unknown = [g is None and not a for g, a in zip(parts, absent, strict=True)]
    if len(parts) < 2 or any(unknown[2:3]):
        return None
    size = next((len(part.items) for part in parts if part is not None), None)
    if size is None:
        return None
    rows: list[Sequence[Item]] = [(None,) * size if g is None else g.items for g in parts]
    axes = rows[2] if len(rows) > 2 and parts[2] is not None else range(size)
    steps = rows[3] if len(rows) > 3 and not absent[3] else (1,) * size
    return rows[0], rows[1], axes, steps


SAME_TYPE = frozenset(("Reshape", "Expand"))
"""Operators that are inferred although onnx could not tell the type of what they make."""

_ELEMENTWISE_TEXT = (
    "Add Sub Mul Div Pow Mod And Or Xor Equal Less Greater LessOrEqual GreaterOrEqual Where Min "
    "Max Sum Mean BitwiseAnd BitwiseOr BitwiseXor BitShift"
)
ELEMENTWISE = frozenset(_ELEMENTWISE_TEXT.split())
"""Operators of several inputs that broadcast both ways (from opset 7 on)."""

_UNARY_TEXT = (
    "Relu LeakyRelu Elu Selu Sigmoid HardSigmoid HardSwish Tanh Exp Log Sqrt Abs Neg Erf Gelu "
    "Cast Clip Not Floor Ceil Round Softplus Reciprocal Sign Identity Mish"
)
UNARY = frozenset(_UNARY_TEXT.split())
"""Operators whose result has the shape of their first input, each element by itself."""


def infer_named_shape(node: ir.Node, values: SymbolicValues, opset: int) -> list[Item] | None:
    """Return the shape of a node's first output, items that do not follow being None."""
    if node.domain or not node.outputs or not node.inputs:
        return None
    if node.op_type in ELEMENTWISE:
        shapes = [shape_of(value) for value in node.inputs]
        ranked = [shape for shape in shapes if shape is not None]
        return broadcast_shapes(ranked) if opset >= 7 and None not in shapes else None
    rule = _RULES.get(node.op_type)
    return rule(node, values, opset) if rule is not None else None


def broadcast_shapes(shapes: Sequence[Sequence[Item]]) -> list[Item]:
    """Return the shape of arrays that are broadcast together, in every run that is valid."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [_join_items(column) for column in zip(*padded, strict=True)]


def _join_items(column: Sequence[Item]) -> Item:
    number = next((item for item in column if isinstance(item, int) and item != 1), None)
    if number is not None:
        return number  # what is not 1 there is equal to it
    dims = {item for item in column if item != 1}
    if len(dims) <= 1:
        return dims.pop() if dims else 1
    # x[:n] beside an axis n: as long, or 1 where n is
    names = [a for a in dims if all(a == second or is_bounded_by(a, second) for second in dims)]
    return names[0] if names else None


def _infer_constant_of_shape(
    node: ir.Node, values: SymbolicValues, opset: int
) -> list[Item] | None:
    to = values.read_partial(node.inputs[0])
    return list(to.items) if to is not None else None


def _infer_range(node: ir.Node, values: SymbolicValues, opset: int) -> list[Item] | None:
    """Range(0, n) has n elements where n is the size of something."""
    start, limit, delta = (values.read_partial(value) for value in node.inputs)
    plain = start is not None and delta is not None and (start.items, delta.items) == ((0,), (1,))
    named = limit is not None and isinstance(limit.items[0], str)
    return list(limit.items) if plain and named and limit is not None else None


def _infer_slice(node: ir.Node, values: SymbolicValues, opset: int) -> list[Item] | None:
    """``x[:n]`` of an axis of 512 has the size ``min(n, 512)``; `is_bounded_by` knows it."""
    slices = read_slices(node, values, opset)
    shape = shape_of(node.inputs[0])
    if slices is None or shape is None:
        return None
    out = list(shape)
    for axis, start, end, step in slices:
        dim = shape[axis]
        if start != 0 or step != 1:
            out[axis] = None
        elif not is_whole_axis(shape, axis, end):
            name = isinstance(end, str) and isinstance(dim, int)
            out[axis] = f"min({end}, {dim})" if name else None
    return out


def _infer_reshape(node: ir.Node, values: SymbolicValues, opset: int) -> list[Item] | None:
    source, to = _read_target(node, values)
    if to is None or source is None:
        return None
    shape = shape_of(source)
    allow_zero = bool(read_attribute(node, "allowzero", 0))
    out: list[Item] = []
    for index, item in enumerate(to.items):
        if item == 0 and not allow_zero:
            out.append(shape[index] if shape is not None and index < len(shape) else None)
        else:
            out.append(None if item == -1 else item)
    if -1 in to.items and shape is not None:
        target_dims = [dim for dim, item in zip(out, to.items, strict=True) if item != -1]
        out[to.items.index(-1)] = _infer_missing_dim(shape, target_dims)
    return out


def _infer_expand(node: ir.Node, values: SymbolicValues, opset: int) -> list[Item] | None:
    source, to = _read_target(node, values)
    shape = shape_of(source)
    return expand_shape(shape, to.items) if to is not None and shape is not None else None


def _read_target(node: ir.Node, values: SymbolicValues) -> tuple[ir.Value | None, Partial | None]:
    source = node.inputs[0]
    if len(node.inputs) < 2 or source is None or source.type is None:
        return None, None
    return source, values.read_partial(node.inputs[1])


def _infer_missing_dim(shape: Sequence[Item], target_dims: Sequence[Item]) -> Item:
    """Return what -1 stands for: the source's dimensions without those of the target."""
    remaining = list(shape)
    size = 1
    for dim in target_dims:
        if isinstance(dim, int):
            size *= dim
        elif dim in remaining and dim is not None:
            remaining.remove(dim)
        else:
            return None
    names = [dim for dim in remaining if not isinstance(dim, int)]
    numbers = math.prod(dim for dim in remaining if isinstance(dim, int))
    if not names:
        return numbers // size if size and numbers % size == 0 else None
    return names[0] if len(names) == 1 and numbers == size else None


def expand_shape(shape: Sequence[Item], to: Sequence[Item]) -> list[Item]:
    """Return the shape behind an Expand."""
    rank = max(len(shape), len(to))
    first, second = ((1,) * (rank - len(dims)) + tuple(dims) for dims in (shape, to))
    out: list[Item] = []
    for a, b in zip(first, second, strict=True):
        if a == 1 or a == b:
            out.append(b)
        elif b == 1:
            out.append(a)
        else:
            # Where both are known and neither is 1 they are equal in every valid run.
            out.append(a if isinstance(a, int) else b if isinstance(b, int) and b != 1 else None)
    return out


_Rule: TypeAlias = Callable[[ir.Node, SymbolicValues, int], list[Item] | None]

_RULES: Mapping[str, _Rule] = {
    "ConstantOfShape": _infer_constant_of_shape,
    "Range": _infer_range,
    "Slice": _infer_slice,
    "Reshape": _infer_reshape,
    "Expand": _infer_expand,
}
