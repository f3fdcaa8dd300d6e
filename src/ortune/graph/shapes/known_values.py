"""Integer tensors that are known in part: the arithmetic that models do on shapes."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir.edit import (
    const_array,
    const_tensor,
    is_overridable,
    read_attribute,
    shape_of,
)
from ortune.graph.ir.evaluate import evaluate_node

Item: TypeAlias = int | str | None
"""A number, a dimension known by its name alone, or nothing known."""

LONGEST = 64
"""Elements up to which a tensor is carried along."""

_WIDEST = 8
"""Bytes of the widest number."""


@dataclass(frozen=True)
class Partial:
    """A tensor of integers or booleans of rank 0 (one item) or 1, in order."""

    items: tuple[Item, ...]
    scalar: bool = False

    @property
    def whole(self) -> bool:
        """Every item is a number."""
        return all(isinstance(item, int) for item in self.items)


@dataclass
class SymbolicValues:
    """What has been found out about the values of a model."""

    # Integer tensors of which something is known, if only names of dimensions.
    parts: dict[ir.Value, Partial] = field(default_factory=dict)
    # Tensors that are the same in every run.
    arrays: dict[ir.Value, NDArray[Any]] = field(default_factory=dict)
    paired: bool = False  # whether a QuantizeLinear is among the nodes that were gone through

    def read_partial(self, value: ir.Value | None) -> Partial | None:
        """Return what is known of an integer tensor of rank 0 or 1."""
        if value is None:
            return None
        if value in self.parts:
            return self.parts[value]
        array = self.read_array(value)
        if array is None or array.ndim > 1 or array.dtype.name not in ("int64", "int32", "bool"):
            return None
        return Partial(tuple(int(x) for x in array.reshape(-1)), array.ndim == 0)

    def read_array(self, value: ir.Value | None) -> NDArray[Any] | None:
        """Return a small constant, be it stored or found out."""
        if value is None:
            return None
        if value in self.arrays:
            return self.arrays[value]
        tensor = const_tensor(value)
        if tensor is None or tensor.size > LONGEST or is_overridable(value):
            return None
        return const_array(value)


def propagate_values(node: ir.Node, values: SymbolicValues, opset: int) -> None:
    """Note in `values` what follows about the node's outputs."""
    values.paired |= node.op_type == "QuantizeLinear"
    if node.domain or not node.outputs or node.op_type == "Constant":
        return
    value = node.outputs[0]
    rule = _RULES.get(node.op_type)
    partial = rule(node, [values.read_partial(v) for v in node.inputs]) if rule else None
    if partial is not None and len(partial.items) <= LONGEST:
        partial = _wrap_items(partial, value.dtype)
        values.parts[value] = partial
        if partial.whole and value.dtype is not None and value.dtype.is_integer():
            array = np.array(partial.items, value.dtype.numpy())
            values.arrays[value] = array.reshape(()) if partial.scalar else array
            return
    arrays = [values.read_array(operand) for operand in node.inputs]
    if any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
        return
    results = evaluate_node(node, arrays, opset, largest=_WIDEST * LONGEST) or ()
    for value, array in zip(node.outputs, results, strict=False):
        if array.size <= LONGEST:
            values.arrays[value] = array


def _wrap_items(partial: Partial, dtype: ir.DataType | None) -> Partial:
    """Let integers wrap around as the tensor's type does in the runtime.

    Where the type is not known, a number that not every type of the rules holds is not either.
    """
    typed = dtype if dtype is not None and dtype.is_integer() else None
    bits = 32 if typed is None else typed.bitwidth
    half = 1 << (bits - 1) if typed is None or typed.is_signed() else 0

    def wrap(item: Item) -> Item:
        if not isinstance(item, int):
            return item
        wrapped = (item + half) % (1 << bits) - half
        return wrapped if typed is not None or wrapped == item else None

    return replace(partial, items=tuple(map(wrap, partial.items)))


_Rule: TypeAlias = Callable[[ir.Node, Sequence[Partial | None]], Partial | None]


def _fold_shape(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = node.inputs[0]
    shape = shape_of(source)
    if shape is None:
        return None
    end = read_attribute(node, "end", None)
    return Partial(shape[read_attribute(node, "start", 0) : len(shape) if end is None else end])


def _fold_size(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = node.inputs[0]
    shape = shape_of(source)
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    if shape is None or len(sizes) < len(shape):
        return None
    return Partial((math.prod(sizes),), scalar=True)


def _fold_cast(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    to = read_attribute(node, "to", 0)
    return inputs[0] if to in (ir.DataType.INT64, ir.DataType.INT32) else None


def _fold_gather(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source, at = inputs
    if source is None or at is None or source.scalar or read_attribute(node, "axis", 0) != 0:
        return None
    size = len(source.items)
    if not all(isinstance(i, int) and -size <= i < size for i in at.items):
        return None
    return Partial(tuple(source.items[i] for i in at.items if isinstance(i, int)), at.scalar)


def _fold_slice(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    if source is None or source.scalar:
        return None
    if len(inputs) > 1:
        bounds = [_read_single(operand) for operand in inputs[1:3]]
        step = _read_single(inputs[4]) if len(inputs) > 4 and node.inputs[4] is not None else 1
    else:
        starts, ends = read_attribute(node, "starts", ()), read_attribute(node, "ends", ())
        bounds = [x[0] if len(x) == 1 else None for x in (starts, ends)]
        step = 1
    if step is None or step == 0 or len(bounds) < 2 or None in bounds:
        return None
    start, end = bounds
    if step < 0 and end is not None and end < -len(source.items):
        end = None  # the far end of a walk backwards has no number in Python
    return Partial(source.items[start:end:step])


def _read_single(partial: Partial | None) -> int | None:
    if partial is None or len(partial.items) != 1:
        return None
    item = partial.items[0]
    return item if isinstance(item, int) else None


def _fold_concat(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    if not all(operand is not None and not operand.scalar for operand in inputs):
        return None
    return Partial(tuple(item for v in inputs if v is not None for item in v.items))


def _fold_unsqueeze(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    axes = inputs[1].items if len(inputs) > 1 and inputs[1] else read_attribute(node, "axes", ())
    is_vector = source is not None and source.scalar and tuple(axes) in ((0,), (-1,))
    return Partial(source.items) if source is not None and is_vector else None


def _fold_squeeze(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    if source is None or source.scalar or len(source.items) != 1:
        return None
    return Partial(source.items, scalar=True)


def _fold_reshape(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source, to = [*inputs, None][:2]  # before opset 5 the shape is an attribute
    if source is None or to is None or to.scalar or len(to.items) > 1:
        return None
    return Partial(source.items, scalar=not to.items)


def _fold_where(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    condition, yes, no = inputs
    if condition is None or yes is None or no is None:
        return None
    rows = _broadcast_items(condition, yes, no)
    if rows is None:
        return None
    items = tuple(
        (a if c else b) if isinstance(c, int) else None for c, a, b in zip(*rows, strict=True)
    )
    return Partial(items, condition.scalar and yes.scalar and no.scalar)


def _broadcast_items(*partials: Partial) -> list[tuple[Item, ...]] | None:
    lengths = {len(partial.items) for partial in partials}
    size = max(lengths) if 0 not in lengths else 0
    if not lengths <= {1, size}:
        return None
    return [p.items if len(p.items) == size else p.items * size for p in partials]


def _make_pairwise_rule(rule: Callable[[Item, Item], Item]) -> _Rule:
    def apply(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
        first, second = inputs[0], inputs[1] if len(inputs) > 1 else None
        if first is None or second is None:
            return None
        rows = _broadcast_items(first, second)
        if rows is None:
            return None
        items = tuple(rule(a, b) for a, b in zip(*rows, strict=True))
        return Partial(items, first.scalar and second.scalar)

    return apply


def _make_arithmetic_rule(op: Callable[[int, int], int], neutral: int, *, commutes: bool) -> _Rule:
    def rule(a: Item, b: Item) -> Item:
        if isinstance(a, int) and isinstance(b, int):
            return op(a, b)
        if isinstance(b, int) and b == neutral:
            return a
        return b if commutes and isinstance(a, int) and a == neutral else None

    return _make_pairwise_rule(rule)


def _divide_items(a: Item, b: Item) -> Item:
    if isinstance(a, int) and isinstance(b, int) and b != 0:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # C++ rounds towards zero
    return a if b == 1 else None


def _compare_items(a: Item, b: Item) -> Item:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    if isinstance(a, str) and a == b:
        return 1
    negative = any(isinstance(x, int) and x < 0 for x in (a, b))
    return 0 if negative and any(isinstance(x, str) for x in (a, b)) else None


_RULES: Mapping[str, _Rule] = {
    "Shape": _fold_shape,
    "Size": _fold_size,
    "Identity": lambda node, inputs: inputs[0],
    "Cast": _fold_cast,
    "Gather": _fold_gather,
    "Slice": _fold_slice,
    "Concat": _fold_concat,
    "Unsqueeze": _fold_unsqueeze,
    "Squeeze": _fold_squeeze,
    "Reshape": _fold_reshape,
    "Where": _fold_where,
    "Equal": _make_pairwise_rule(_compare_items),
    "Add": _make_arithmetic_rule(operator.add, 0, commutes=True),
    "Sub": _make_arithmetic_rule(operator.sub, 0, commutes=False),
    "Mul": _make_arithmetic_rule(operator.mul, 1, commutes=True),
    "Div": _make_pairwise_rule(_divide_items),
}
