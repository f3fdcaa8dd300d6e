"""Integer tensors that count: each number a sum of multiples of its own position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from ortune.model.graph.edit import attribute
from ortune.model.graph.spec import shape_of
from ortune.model.shapes.known_values import Item, Known


@dataclass(frozen=True)
class Index:
    """``offset + sum of terms[axis] * position along axis``.

    Attributes:
        terms: Factors, numbers or names of sizes; axes of size 1 have none.
    """

    terms: Mapping[int, Item] = field(default_factory=dict)
    offset: int = 0

    @property
    def counts(self) -> int | None:
        """The one axis whose positions these are, from 0 in steps of 1; None for anything else."""
        only = next(iter(self.terms), None)
        plain = len(self.terms) == 1 and self.offset == 0 and self.terms[only or 0] == 1
        return only if plain else None

    @property
    def lowest(self) -> int | None:
        """The smallest number where no factor is negative; None where one is."""
        falls = any(isinstance(factor, int) and factor < 0 for factor in self.terms.values())
        return None if falls else self.offset


def index_of(value: ir.Value | None, known: Known) -> Index | None:
    """Return how a tensor follows from positions; None where it does not, or not surely."""
    if value is None or shape_of(value) is None:
        return None
    array = known.array(value)
    if array is not None:
        same = array.dtype.kind == "i" and array.size and (array == array.flat[0]).all()
        return Index({}, int(array.flat[0])) if same else None
    node = value.producer()
    rule = _RULES.get(node.op_type) if node is not None and not node.domain else None
    found = rule(node, known) if rule is not None and node is not None else None
    return _without_ones(found, value) if found is not None else None


def always(node: ir.Node, known: Known) -> bool:
    """Say whether a comparison of positions with a constant is true everywhere."""
    if node.domain or node.op_type not in _COMPARES or len(node.inputs) != 2:
        return False
    high, low = node.inputs if node.op_type.startswith("Greater") else reversed(node.inputs)
    one, two = index_of(high, known), index_of(low, known)
    if one is None or two is None or two.terms or one.lowest is None:
        return False
    return one.lowest >= two.offset + (not node.op_type.endswith("OrEqual"))


_COMPARES = ("GreaterOrEqual", "Greater", "LessOrEqual", "Less")
_Rule: TypeAlias = Callable[[ir.Node, Known], Index | None]


def _without_ones(found: Index, value: ir.Value) -> Index:
    shape = shape_of(value) or ()
    kept = {axis: factor for axis, factor in found.terms.items() if shape[axis] != 1}
    return Index(kept, found.offset)


def _range(node: ir.Node, known: Known) -> Index | None:
    start, _, step = (known.part(value) for value in node.inputs)
    if start is None or step is None or not start.whole or not step.whole:
        return None
    first, factor = start.items[0], step.items[0]
    return Index({0: factor}, first) if isinstance(first, int) else None


def _same(node: ir.Node, known: Known) -> Index | None:
    return index_of(node.inputs[0], known)


def _cast(node: ir.Node, known: Known) -> Index | None:
    return _same(node, known) if attribute(node, "to", 0) == ir.DataType.INT64 else None


def _reshaped(node: ir.Node, known: Known) -> Index | None:
    """Axes of size 1 come and go; the others keep their order."""
    found = index_of(node.inputs[0], known)
    before, after = (shape_of(one) or (None,) for one in (node.inputs[0], node.outputs[0]))
    if found is None or None in before or None in after:
        return None
    one = [axis for axis, dim in enumerate(before) if dim != 1]
    two = [axis for axis, dim in enumerate(after) if dim != 1]
    if [before[axis] for axis in one] != [after[axis] for axis in two]:
        return None
    places = dict(zip(one, two, strict=True))
    return Index({places[axis]: factor for axis, factor in found.terms.items()}, found.offset)


def _expand(node: ir.Node, known: Known) -> Index | None:
    return _raised(node.inputs[0], node, known)


def _raised(value: ir.Value | None, node: ir.Node, known: Known) -> Index | None:
    """Return an operand's index with the axes of what it is broadcast to."""
    found = index_of(value, known)
    before = shape_of(value)
    after = shape_of(node.outputs[0])
    if found is None or before is None or after is None:
        return None
    more = len(after) - len(before)
    if any(before[axis] is None or before[axis] != after[axis + more] for axis in found.terms):
        return None
    return Index({axis + more: factor for axis, factor in found.terms.items()}, found.offset)


def _sum(node: ir.Node, known: Known) -> Index | None:
    one, two = (_raised(value, node, known) for value in node.inputs)
    sign = -1 if node.op_type == "Sub" else 1
    if one is None or two is None:
        return None
    terms = dict(one.terms)
    for axis, factor in two.terms.items():
        if sign < 0 and not isinstance(factor, int):
            return None
        added = sign * factor if isinstance(factor, int) else factor
        before = terms.get(axis, 0)
        if axis in terms and not (isinstance(before, int) and isinstance(added, int)):
            return None
        both = isinstance(before, int) and isinstance(added, int)
        terms[axis] = before + added if both else added  # type: ignore[operator]
    return Index(terms, one.offset + sign * two.offset)


def _product(node: ir.Node, known: Known) -> Index | None:
    for one, two in (node.inputs, tuple(reversed(node.inputs))):
        part = known.part(two)
        found = _raised(one, node, known) if part is not None else None
        if part is None or found is None or len(part.items) != 1 or found.offset:
            continue
        factor = part.items[0]
        if isinstance(factor, int):
            plain = {a: factor * f for a, f in found.terms.items() if isinstance(f, int)}
            return Index(plain) if len(plain) == len(found.terms) else None
        if factor is not None and set(found.terms.values()) <= {1}:
            return Index(dict.fromkeys(found.terms, factor))
    return None


_RULES: Mapping[str, _Rule] = {
    "Range": _range,
    "Identity": _same,
    "Cast": _cast,
    "Unsqueeze": _reshaped,
    "Squeeze": _reshaped,
    "Reshape": _reshaped,
    "Expand": _expand,
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
}
