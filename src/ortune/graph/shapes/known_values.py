"""Integer tensors that are known in part: the arithmetic that models do on shapes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir.edit import attribute, const_array, const_tensor
from ortune.graph.ir.evaluate import evaluate
from ortune.graph.ir.spec import shape_of
from ortune.graph.ir.values import overridable

Item: TypeAlias = int | str | None
"""A number, a dimension known by its name alone, or nothing known."""

LONGEST = 64
"""Elements up to which a tensor is carried along."""


@dataclass(frozen=True)
class Partial:
    """A tensor of integers or booleans of rank 0 or 1.

    Attributes:
        items: In order; one for a scalar.
    """

    items: tuple[Item, ...]
    scalar: bool = False

    @property
    def whole(self) -> bool:
        """Every item is a number."""
        return all(isinstance(item, int) for item in self.items)


@dataclass
class Known:
    """What has been found out about the values of a model.

    Attributes:
        parts: Integer tensors of which something is known, if only names of dimensions.
        arrays: Tensors that are the same in every run.
    """

    parts: dict[ir.Value, Partial] = field(default_factory=dict)
    arrays: dict[ir.Value, NDArray[Any]] = field(default_factory=dict)

    def part(self, value: ir.Value | None) -> Partial | None:
        """Return what is known of an integer tensor of rank 0 or 1."""
        if value is None:
            return None
        if value in self.parts:
            return self.parts[value]
        array = self.array(value)
        if array is None or array.ndim > 1 or array.dtype.name not in ("int64", "int32", "bool"):
            return None
        return Partial(tuple(int(x) for x in array.reshape(-1)), array.ndim == 0)

    def array(self, value: ir.Value | None) -> NDArray[Any] | None:
        """Return a small constant, be it stored or found out."""
        if value is None:
            return None
        if value in self.arrays:
            return self.arrays[value]
        tensor = const_tensor(value)
        if tensor is None or tensor.size > LONGEST or overridable(value):
            return None
        return const_array(value)


def propagate(node: ir.Node, known: Known, opset: int) -> None:
    """Note in `known` what follows about the node's outputs."""
    if node.domain or not node.outputs or node.op_type == "Constant":
        return
    value = node.outputs[0]
    rule = _RULES.get(node.op_type)
    found = rule(node, [known.part(one) for one in node.inputs]) if rule is not None else None
    if found is not None and len(found.items) <= LONGEST:
        known.parts[value] = found
        if found.whole and value.dtype is not None and value.dtype.is_integer():
            array = np.array(found.items, value.dtype.numpy())
            known.arrays[value] = array.reshape(()) if found.scalar else array
            return
    arrays = [known.array(one) for one in node.inputs]
    if any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
        return
    for value, array in zip(node.outputs, evaluate(node, arrays, opset) or (), strict=False):
        if array.size <= LONGEST:
            known.arrays[value] = array


_Rule: TypeAlias = Callable[[ir.Node, Sequence[Partial | None]], Partial | None]


def _shape(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = node.inputs[0]
    shape = shape_of(source)
    if shape is None:
        return None
    end = attribute(node, "end", None)
    return Partial(shape[attribute(node, "start", 0) : len(shape) if end is None else end])


def _size(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = node.inputs[0]
    shape = shape_of(source)
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    if shape is None or len(sizes) < len(shape):
        return None
    return Partial((math.prod(sizes),), scalar=True)


def _cast(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    to = attribute(node, "to", 0)
    return inputs[0] if to in (ir.DataType.INT64, ir.DataType.INT32) else None


def _gather(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source, at = inputs
    if source is None or at is None or source.scalar or attribute(node, "axis", 0) != 0:
        return None
    size = len(source.items)
    if not all(isinstance(i, int) and -size <= i < size for i in at.items):
        return None
    return Partial(tuple(source.items[i] for i in at.items if isinstance(i, int)), at.scalar)


def _slice(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    if source is None or source.scalar:
        return None
    if len(inputs) > 1:
        given = [_one(one) for one in inputs[1:3]]
        step = _one(inputs[4]) if len(inputs) > 4 and node.inputs[4] is not None else 1
    else:
        starts, ends = attribute(node, "starts", ()), attribute(node, "ends", ())
        given = [x[0] if len(x) == 1 else None for x in (starts, ends)]
        step = 1
    if step is None or step == 0 or len(given) < 2 or None in given:
        return None
    start, end = given
    if step < 0 and end is not None and end < -len(source.items):
        end = None  # the far end of a walk backwards has no number in Python
    return Partial(source.items[start:end:step])


def _one(partial: Partial | None) -> int | None:
    if partial is None or len(partial.items) != 1:
        return None
    item = partial.items[0]
    return item if isinstance(item, int) else None


def _concat(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    if not all(one is not None and not one.scalar for one in inputs):
        return None
    return Partial(tuple(item for one in inputs if one is not None for item in one.items))


def _unsqueeze(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    axes = inputs[1].items if len(inputs) > 1 and inputs[1] else attribute(node, "axes", ())
    one = source is not None and source.scalar and tuple(axes) in ((0,), (-1,))
    return Partial(source.items) if source is not None and one else None


def _squeeze(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source = inputs[0]
    if source is None or source.scalar or len(source.items) != 1:
        return None
    return Partial(source.items, scalar=True)


def _reshape(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    source, to = inputs
    if source is None or to is None or to.scalar or len(to.items) > 1:
        return None
    return Partial(source.items, scalar=not to.items)


def _where(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
    condition, yes, no = inputs
    if condition is None or yes is None or no is None:
        return None
    rows = _broadcast(condition, yes, no)
    if rows is None:
        return None
    items = tuple(
        (a if c else b) if isinstance(c, int) else None for c, a, b in zip(*rows, strict=True)
    )
    return Partial(items, condition.scalar and yes.scalar and no.scalar)


def _broadcast(*partials: Partial) -> list[tuple[Item, ...]] | None:
    lengths = {len(one.items) for one in partials}
    size = max(lengths) if 0 not in lengths else 0
    if not lengths <= {1, size}:
        return None
    return [one.items if len(one.items) == size else one.items * size for one in partials]


def _pairwise(rule: Callable[[Item, Item], Item]) -> _Rule:
    def apply(node: ir.Node, inputs: Sequence[Partial | None]) -> Partial | None:
        one, two = inputs[0], inputs[1] if len(inputs) > 1 else None
        if one is None or two is None:
            return None
        rows = _broadcast(one, two)
        if rows is None:
            return None
        items = tuple(rule(a, b) for a, b in zip(*rows, strict=True))
        return Partial(items, one.scalar and two.scalar)

    return apply


def _arithmetic(op: Callable[[int, int], int], neutral: int, *, commutes: bool) -> _Rule:
    def rule(a: Item, b: Item) -> Item:
        if isinstance(a, int) and isinstance(b, int):
            return op(a, b)
        if isinstance(b, int) and b == neutral:
            return a
        return b if commutes and isinstance(a, int) and a == neutral else None

    return _pairwise(rule)


def _divide(a: Item, b: Item) -> Item:
    if isinstance(a, int) and isinstance(b, int) and b != 0:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # C++ rounds towards zero
    return a if b == 1 else None


def _equal(a: Item, b: Item) -> Item:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    if isinstance(a, str) and a == b:
        return 1
    negative = any(isinstance(x, int) and x < 0 for x in (a, b))
    return 0 if negative and any(isinstance(x, str) for x in (a, b)) else None


_RULES: Mapping[str, _Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": lambda node, inputs: inputs[0],
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Where": _where,
    "Equal": _pairwise(_equal),
    "Add": _arithmetic(operator.add, 0, commutes=True),
    "Sub": _arithmetic(operator.sub, 0, commutes=False),
    "Mul": _arithmetic(operator.mul, 1, commutes=True),
    "Div": _pairwise(_divide),
}
