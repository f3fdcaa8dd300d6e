"""Masks that exporters compute number by number, and that only hand an input on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import Editor, attribute, every_node
from ortune.graph.ir.match import maker
from ortune.graph.ir.replace import forward, remove, replace
from ortune.graph.ir.spec import shape_of
from ortune.graph.shapes.known_values import Item, Known
from ortune.graph.shapes.named_dims import ELEMENTWISE, UNARY, broadcast, expanded
from ortune.transforms.common.simplify.reshapes import added_axes


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


def _cast(node: ir.Node, known: Known) -> Index | None:
    return (
        index_of(node.inputs[0], known) if attribute(node, "to", 0) == ir.DataType.INT64 else None
    )


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
    "Identity": lambda node, known: index_of(node.inputs[0], known),
    "Cast": _cast,
    "Unsqueeze": _reshaped,
    "Squeeze": _reshaped,
    "Reshape": _reshaped,
    "Expand": lambda node, known: _raised(node.inputs[0], node, known),
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
}


_FIRST = 7
"""Opset from which element-wise operators broadcast both ways."""


def settle_masks(model: ir.Model, known: Known) -> int:
    """Take the long way round out of attention masks; return how many nodes went.

    ::

        gather_nd(x, (i, j))[b, 0, 0, s] with i = b, j = s    is x with two axes more
        gather(flatten(x), b * length + s)                    likewise
        (position >= 0) and x                                 is x, wider perhaps
        expand(x)                                             is x, where all that reads it
                                                              broadcasts it as wide by itself

    minilm by the tracing exporter is left with 4 nodes for its mask instead of 22.
    """
    opset = model.opset_imports.get("", 0)
    if opset < _FIRST:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        if node.domain or node.graph is None:
            continue
        if node.op_type == "And":
            count += _true(node, known)
        elif node.op_type == "Expand":
            count += _narrow(node, node.inputs[0], known)
        elif node.op_type in ("GatherND", "Gather"):
            source = _taken(node, known)
            count += _view(node, source, editor, opset) if source is not None else 0
    return count


def _true(node: ir.Node, known: Known) -> int:
    for condition, value in (node.inputs, tuple(reversed(node.inputs))):
        maker_of = condition.producer() if condition is not None else None
        if maker_of is not None and always(maker_of, known) and _narrow(node, value, known):
            return 1
    return 0


def _narrow(node: ir.Node, value: ir.Value | None, known: Known) -> int:
    """Forward `value`, whose result is only broadcast, where no reader sees the difference."""
    wide, narrow = shape_of(node.outputs[0]), shape_of(value)
    if value is None or wide is None or narrow is None or None in wide or None in narrow:
        return 0
    shapes: dict[ir.Value, Sequence[Item]] = {}
    if wide != narrow and not _absorbed(node.outputs[0], wide, narrow, known, shapes):
        return 0
    if not forward(node.outputs[0], value):
        return 0
    remove(node)
    for changed, shape in shapes.items():
        changed.shape = ir.Shape(shape)
    return 1


def _absorbed(
    value: ir.Value,
    wide: Sequence[Item],
    narrow: Sequence[Item],
    known: Known,
    shapes: dict[ir.Value, Sequence[Item]],
) -> bool:
    """Say whether all readers make the same of the narrow form; note what becomes narrower."""
    if value.is_graph_output():
        return False
    for node in dict.fromkeys(user for user, _ in value.uses()):
        after = _after(node, value, narrow, known)
        before = shape_of(node.outputs[0]) if after is not None else None
        if after is None or before is None or None in before or None in after:
            return False
        if list(after) == list(before):
            continue
        shapes[node.outputs[0]] = after
        if not _absorbed(node.outputs[0], before, after, known, shapes):
            return False
    return True


def _after(
    node: ir.Node, value: ir.Value, narrow: Sequence[Item], known: Known
) -> Sequence[Item] | None:
    """Return a reader's shape with the narrow form; None for what may not read it."""
    if node.domain:
        return None
    if node.op_type in UNARY and node.inputs[0] is value:
        return narrow
    if node.op_type == "Expand" and node.inputs[0] is value and node.inputs[1] is not value:
        to = known.part(node.inputs[1])
        return expanded(narrow, to.items) if to is not None else None
    if node.op_type not in ELEMENTWISE:
        return None
    shapes = [narrow if one is value else shape_of(one) for one in node.inputs]
    given = [shape for shape in shapes if shape is not None]
    return broadcast(given) if len(given) == len(shapes) else None


def _taken(node: ir.Node, known: Known) -> ir.Value | None:
    """Return the tensor whose numbers a Gather gives in their own order."""
    if node.op_type == "GatherND":
        return _by_axes(node, known)
    flat = maker(node.inputs[0], "Flatten", "Reshape")
    source = flat.inputs[0] if flat is not None else None
    shape = shape_of(source)
    if flat is None or shape is None or len(shape) != 2 or attribute(node, "axis", 0) != 0:
        return None
    if flat.op_type == "Flatten":
        row = attribute(flat, "axis", 1) == 2
    else:
        to = known.part(flat.inputs[1])
        row = to is not None and to.items == (-1,)
    found = index_of(node.inputs[1], known)
    if not row or found is None or found.offset:
        return None
    factors: list[Item] = [shape[1], 1]
    wanted = {dim: factor for dim, factor in zip((0, 1), factors, strict=True) if shape[dim] != 1}
    if sorted(map(str, wanted.values())) != sorted(map(str, found.terms.values())):
        return None
    axes = []
    for axis in sorted(found.terms):
        dim = next((d for d, factor in wanted.items() if factor == found.terms[axis]), None)
        if dim is None:
            return None
        axes.append((dim, axis))
    return source if _in_order(axes, shape, node.inputs[1]) else None


def _by_axes(node: ir.Node, known: Known) -> ir.Value | None:
    source, joined = node.inputs[0], maker(node.inputs[1], "Concat")
    shape = shape_of(source)
    at = shape_of(node.inputs[1])
    if source is None or joined is None or shape is None or at is None:
        return None
    whole = attribute(joined, "axis", 0) in (-1, len(at) - 1) and len(joined.inputs) == len(shape)
    if not whole or attribute(node, "batch_dims", 0):
        return None
    axes = []
    for dim, value in enumerate(joined.inputs):
        found = index_of(value, known)
        part = shape_of(value)
        if found is None or part is None or part[-1] != 1:
            return None
        if found == Index() and shape[dim] == 1:
            continue
        if found.counts is None:
            return None
        axes.append((dim, found.counts))
    return source if _in_order(axes, shape, node.outputs[0]) else None


def _in_order(
    axes: Sequence[tuple[int, int]], shape: Sequence[Item], indices: ir.Value | None
) -> bool:
    """Say whether the positions run over all of the tensor, axis after axis, and nothing else."""
    out = shape_of(indices)
    if out is None or None in out:
        return False
    places = [place for _, place in axes]
    if places != sorted(set(places)) or [dim for dim, _ in axes] != sorted(dim for dim, _ in axes):
        return False
    if any(shape[dim] != out[place] for dim, place in axes):
        return False
    left = [dim for dim in range(len(shape)) if dim not in {d for d, _ in axes}]
    alone = [place for place in range(len(out)) if place not in places]
    return all(shape[dim] == 1 for dim in left) and all(out[place] == 1 for place in alone)


def _view(node: ir.Node, source: ir.Value, editor: Editor, opset: int) -> int:
    """Put an Unsqueeze in the place of a Gather that keeps all numbers in order."""
    axes = added_axes(shape_of(source), shape_of(node.outputs[0]))
    if axes is None or node.graph is None:
        return 0
    if opset < 13:
        made = editor.node("Unsqueeze", [source], {"axes": axes}, name=f"{node.name}_view")
    else:
        constant = editor.constant(f"{node.name}_axes", np.array(axes, np.int64))
        made = editor.node("Unsqueeze", [source, constant], name=f"{node.name}_view")
    return int(replace(node, made))


_SHAPE_PARTS_OPSET = 15
"""Shape takes a start and an end from this opset on."""

_PASSING = ("Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape")


def settle_lengths(model: ir.Model, known: Known) -> int:
    """Write what is taken out of a Shape in several steps as one Shape; return how many were.

    ``unsqueeze(gather(shape(x), i), 0) = shape(x, start=i, end=i+1)``: what Slice, Reshape and
    Expand read as a list. Lengths that are read as a scalar keep their Gather.
    """
    if model.opset_imports.get("", 0) < _SHAPE_PARTS_OPSET:
        return 0
    editor = Editor(model.graph)
    count = 0
    for node in every_node(model):
        if node.domain or node.op_type not in _PASSING or node.graph is None:
            continue
        value = node.outputs[0]
        part = known.parts.get(value)
        if part is None or part.scalar or value in known.arrays or not part.items:
            continue
        source = _measured(node)
        shape = shape_of(source)
        if source is None or shape is None or None in part.items:
            continue
        size = len(part.items)
        starts = [i for i in range(len(shape)) if shape[i : i + size] == part.items]
        if starts:
            limits = {"start": starts[0], "end": starts[0] + size}
            made = editor.node("Shape", [source], limits, name=f"{node.name}_length")
            made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
            node.graph.insert_before(node, made)
            count += forward(value, made.outputs[0])
    return count


def _measured(node: ir.Node) -> ir.Value | None:
    """Return the tensor whose Shape a chain of takings begins with."""
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if before is None or before.domain:
        return None
    if before.op_type == "Shape":
        return before.inputs[0]
    return _measured(before) if before.op_type in _PASSING else None
