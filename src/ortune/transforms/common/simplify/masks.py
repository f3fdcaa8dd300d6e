"""Masks that exporters compute number by number, and that only hand an input on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit, match
from ortune.graph.shapes.known_values import Item, SymbolicValues
from ortune.graph.shapes.named_dims import ELEMENTWISE, UNARY, broadcast_shapes, expand_shape
from ortune.transforms.common.simplify.reshapes import find_added_axes


@dataclass(frozen=True)
class Index:
    """``offset + sum of terms[axis] * position along axis``."""

    # Factors, numbers or names of sizes; axes of size 1 have none.
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


_MOST_TERM = 1 << 20
"""A larger factor or offset could wrap around in 64 bits: no tensor has 2 ** 40 positions."""


@dataclass
class Positions:
    """How tensors follow from positions, in the order of the graph; what may not is not in it."""

    symbolic_values: SymbolicValues
    indices: dict[ir.Value, Index] = field(default_factory=dict)

    def note_node(self, node: ir.Node) -> None:
        """Note what follows about a node's first output; its inputs are done."""
        rule = _RULES.get(node.op_type) if not node.domain else None
        if rule is None or not node.outputs or edit.shape_of(value := node.outputs[0]) is None:
            return
        index = rule(node, self) if value.dtype == ir.DataType.INT64 else None
        if index is not None and all(
            not isinstance(number, int) or abs(number) < _MOST_TERM
            for number in (index.offset, *index.terms.values())
        ):
            shape = edit.shape_of(value) or ()
            kept = {axis: factor for axis, factor in index.terms.items() if shape[axis] != 1}
            self.indices[value] = Index(kept, index.offset)

    def read_index(self, value: ir.Value | None) -> Index | None:
        """Return how a tensor follows from positions; None where it does not, or not surely."""
        if value is None or edit.shape_of(value) is None:
            return None
        array = self.symbolic_values.read_array(value)
        if array is None:
            return self.indices.get(value)
        same = array.dtype.kind == "i" and array.size and (array == array.flat[0]).all()
        return Index({}, int(array.flat[0])) if same else None


def is_always_true(node: ir.Node, positions: Positions) -> bool:
    """Say whether a comparison of positions with a constant is true everywhere."""
    if node.domain or node.op_type not in _COMPARES or len(node.inputs) != 2:
        return False
    high, low = node.inputs if node.op_type.startswith("Greater") else reversed(node.inputs)
    high_index, low_index = positions.read_index(high), positions.read_index(low)
    if high_index is None or low_index is None or low_index.terms or high_index.lowest is None:
        return False
    return high_index.lowest >= low_index.offset + (not node.op_type.endswith("OrEqual"))


_COMPARES = ("GreaterOrEqual", "Greater", "LessOrEqual", "Less")
_Rule: TypeAlias = Callable[[ir.Node, Positions], Index | None]


def _range(node: ir.Node, positions: Positions) -> Index | None:
    start, _, step = (positions.symbolic_values.read_partial(value) for value in node.inputs)
    if start is None or step is None or not start.whole or not step.whole:
        return None
    first, factor = start.items[0], step.items[0]
    return Index({0: factor}, first) if isinstance(first, int) else None


def _cast(node: ir.Node, positions: Positions) -> Index | None:
    whole = edit.read_attribute(node, "to", 0) == ir.DataType.INT64
    return positions.read_index(node.inputs[0]) if whole else None


def _index_of_reshape(node: ir.Node, positions: Positions) -> Index | None:
    """Axes of size 1 come and go; the others keep their order."""
    index = positions.read_index(node.inputs[0])
    before, after = (edit.shape_of(v) or (None,) for v in (node.inputs[0], node.outputs[0]))
    if index is None or None in before or None in after:
        return None
    before_axes = [axis for axis, dim in enumerate(before) if dim != 1]
    two = [axis for axis, dim in enumerate(after) if dim != 1]
    if [before[axis] for axis in before_axes] != [after[axis] for axis in two]:
        return None
    places = dict(zip(before_axes, two, strict=True))
    return Index({places[axis]: factor for axis, factor in index.terms.items()}, index.offset)


def _broadcast_index(value: ir.Value | None, node: ir.Node, positions: Positions) -> Index | None:
    """Return an operand's index with the axes of what it is broadcast to."""
    index = positions.read_index(value)
    before = edit.shape_of(value)
    after = edit.shape_of(node.outputs[0])
    if index is None or before is None or after is None:
        return None
    more = len(after) - len(before)
    if any(before[axis] is None or before[axis] != after[axis + more] for axis in index.terms):
        return None
    return Index({axis + more: factor for axis, factor in index.terms.items()}, index.offset)


def _sum(node: ir.Node, positions: Positions) -> Index | None:
    first, second = (_broadcast_index(value, node, positions) for value in node.inputs)
    sign = -1 if node.op_type == "Sub" else 1
    if first is None or second is None:
        return None
    terms = dict(first.terms)
    for axis, factor in second.terms.items():
        if sign < 0 and not isinstance(factor, int):
            return None
        added = sign * factor if isinstance(factor, int) else factor
        before = terms.get(axis, 0)
        if axis in terms and not (isinstance(before, int) and isinstance(added, int)):
            return None
        both = isinstance(before, int) and isinstance(added, int)
        terms[axis] = before + added if both else added  # type: ignore[operator]
    return Index(terms, first.offset + sign * second.offset)


def _product(node: ir.Node, positions: Positions) -> Index | None:
    for first, second in (node.inputs, tuple(reversed(node.inputs))):
        part = positions.symbolic_values.read_partial(second)
        index = _broadcast_index(first, node, positions) if part is not None else None
        if part is None or index is None or len(part.items) != 1 or index.offset:
            continue
        factor = part.items[0]
        if isinstance(factor, int):
            plain = {a: factor * f for a, f in index.terms.items() if isinstance(f, int)}
            return Index(plain) if len(plain) == len(index.terms) else None
        if factor is not None and set(index.terms.values()) <= {1}:
            return Index(dict.fromkeys(index.terms, factor))
    return None


_RULES: Mapping[str, _Rule] = {
    "Range": _range,
    "Identity": lambda node, positions: positions.read_index(node.inputs[0]),
    "Cast": _cast,
    "Unsqueeze": _index_of_reshape,
    "Squeeze": _index_of_reshape,
    "Reshape": _index_of_reshape,
    "Expand": lambda node, positions: _broadcast_index(node.inputs[0], node, positions),
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
}


_MOST_NARROWED = 64
"""Values that one step makes narrower: with more of them it is not looked at to the end."""

_FIRST = 7
"""Opset from which element-wise operators broadcast both ways."""


def settle_masks(model: ir.Model, symbolic_values: SymbolicValues) -> int:
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
    editor = edit.Editor(model.graph)
    positions = Positions(symbolic_values)
    count = 0
    for node in edit.walk_nodes(model):
        if node.domain or node.graph is None:
            continue
        positions.note_node(node)
        if node.op_type == "And":
            count += _drop_true_mask(node, positions)
        elif node.op_type == "Expand":
            count += _forward_narrow(node, node.inputs[0], symbolic_values)
        elif node.op_type in ("GatherND", "Gather"):
            source = _find_gathered(node, positions)
            if source is not None:
                count += _replace_by_unsqueeze(node, source, editor, opset)
    return count


def _drop_true_mask(node: ir.Node, positions: Positions) -> int:
    for condition, value in (node.inputs, tuple(reversed(node.inputs))):
        maker_of = condition.producer() if condition is not None else None
        holds = maker_of is not None and is_always_true(maker_of, positions)
        if holds and _forward_narrow(node, value, positions.symbolic_values):
            return 1
    return 0


def _forward_narrow(node: ir.Node, value: ir.Value | None, symbolic_values: SymbolicValues) -> int:
    """Forward `value`, whose result is only broadcast, where no reader sees the difference."""
    wide, narrow = edit.shape_of(node.outputs[0]), edit.shape_of(value)
    if value is None or wide is None or narrow is None or None in wide or None in narrow:
        return 0
    shapes: dict[ir.Value, Sequence[Item]] = {node.outputs[0]: narrow}
    if wide != narrow and not _is_absorbed(node.outputs[0], symbolic_values, shapes):
        return 0
    if not edit.redirect_uses(node.outputs[0], value):
        return 0
    edit.remove_node(node)
    for changed, shape in shapes.items():
        changed.shape = ir.Shape(shape)
    return 1


def _is_absorbed(
    value: ir.Value, symbolic_values: SymbolicValues, shapes: dict[ir.Value, Sequence[Item]]
) -> bool:
    """Say whether all readers make the same of the narrow form; add what narrows to `shapes`."""
    todo = [value]
    while todo:
        changed = todo.pop()
        if changed.is_graph_output() or len(shapes) > _MOST_NARROWED:
            return False
        for node in dict.fromkeys(user for user, _ in changed.uses()):
            after = _compute_reader_shape(node, changed, symbolic_values, shapes)
            out = node.outputs[0]
            before = shapes.get(out, edit.shape_of(out)) if after is not None else None
            if after is None or before is None or None in before or None in after:
                return False
            if list(after) != list(before):
                shapes[out] = after
                todo.append(out)
    return True


def _compute_reader_shape(
    node: ir.Node,
    value: ir.Value,
    symbolic_values: SymbolicValues,
    shapes: Mapping[ir.Value, Sequence[Item]],
) -> Sequence[Item] | None:
    """Return a reader's shape with narrow forms; None for what may not read this value's."""
    if node.domain:
        return None
    narrow = shapes[value]
    if node.op_type in UNARY and node.inputs[0] is value:
        return narrow
    if node.op_type == "Expand" and node.inputs[0] is value and node.inputs[1] is not value:
        to = symbolic_values.read_partial(node.inputs[1])
        return expand_shape(narrow, to.items) if to is not None else None
    if node.op_type not in ELEMENTWISE:
        return None
    operands = [shapes.get(v, edit.shape_of(v)) if v is not None else None for v in node.inputs]
    known_shapes = [shape for shape in operands if shape is not None]
    return broadcast_shapes(known_shapes) if len(known_shapes) == len(operands) else None


def _find_gathered(node: ir.Node, positions: Positions) -> ir.Value | None:
    """Return the tensor whose numbers a Gather gives in their own order."""
    if node.op_type == "GatherND":
        return _by_axes(node, positions)
    flat = match.find_producer(node.inputs[0], "Flatten", "Reshape")
    source = flat.inputs[0] if flat is not None else None
    shape = edit.shape_of(source)
    if (
        flat is None
        or shape is None
        or len(shape) != 2
        or edit.read_attribute(node, "axis", 0) != 0
    ):
        return None
    if flat.op_type == "Flatten":
        row = edit.read_attribute(flat, "axis", 1) == 2
    else:
        to = positions.symbolic_values.read_partial([*flat.inputs, None][1])
        row = to is not None and to.items == (-1,)
    index = positions.read_index(node.inputs[1])
    if not row or index is None or index.offset:
        return None
    factors: list[Item] = [shape[1], 1]
    expected_factors = {dim: f for dim, f in zip((0, 1), factors, strict=True) if shape[dim] != 1}
    if sorted(map(str, expected_factors.values())) != sorted(map(str, index.terms.values())):
        return None
    axes = []
    for axis in sorted(index.terms):
        dim = next((d for d, f in expected_factors.items() if f == index.terms[axis]), None)
        if dim is None:
            return None
        axes.append((dim, axis))
    return source if _in_order(axes, shape, node.inputs[1]) else None


def _by_axes(node: ir.Node, positions: Positions) -> ir.Value | None:
    source, joined = node.inputs[0], match.find_producer(node.inputs[1], "Concat")
    shape = edit.shape_of(source)
    at = edit.shape_of(node.inputs[1])
    if source is None or joined is None or shape is None or at is None:
        return None
    last = edit.read_attribute(joined, "axis", 0) in (-1, len(at) - 1)
    if not last or len(joined.inputs) != len(shape) or edit.read_attribute(node, "batch_dims", 0):
        return None
    axes = []
    for dim, value in enumerate(joined.inputs):
        index = positions.read_index(value)
        part = edit.shape_of(value)
        if index is None or part is None or part[-1] != 1:
            return None
        if index == Index() and shape[dim] == 1:
            continue
        if index.counts is None:
            return None
        axes.append((dim, index.counts))
    return source if _in_order(axes, shape, node.outputs[0]) else None


def _in_order(
    axes: Sequence[tuple[int, int]], shape: Sequence[Item], indices: ir.Value | None
) -> bool:
    """Say whether the positions run over all of the tensor, axis after axis, and nothing else."""
    out = edit.shape_of(indices)
    if out is None or None in out:
        return False
    places = [place for _, place in axes]
    if places != sorted(set(places)) or [dim for dim, _ in axes] != sorted(dim for dim, _ in axes):
        return False
    if any(shape[dim] != out[place] for dim, place in axes):
        return False
    remaining_dims = [dim for dim in range(len(shape)) if dim not in {d for d, _ in axes}]
    alone = [place for place in range(len(out)) if place not in places]
    return all(shape[d] == 1 for d in remaining_dims) and all(out[place] == 1 for place in alone)


def _replace_by_unsqueeze(node: ir.Node, source: ir.Value, editor: edit.Editor, opset: int) -> int:
    """Put an Unsqueeze in the place of a Gather that keeps all numbers in order."""
    axes = find_added_axes(edit.shape_of(source), edit.shape_of(node.outputs[0]))
    if axes is None or node.graph is None:
        return 0
    if opset < 13:
        unsqueeze = editor.make_node(
            "Unsqueeze", [source], {"axes": axes}, name=f"{node.name}_view"
        )
    else:
        constant = editor.add_constant(f"{node.name}_axes", np.array(axes, np.int64))
        unsqueeze = editor.make_node("Unsqueeze", [source, constant], name=f"{node.name}_view")
    return int(edit.replace_node(node, unsqueeze))


_SHAPE_PARTS_OPSET = 15
"""Shape takes a start and an end from this opset on."""

_LONGEST_CHAIN = 16

_PASSING = ("Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape")


def settle_lengths(model: ir.Model, symbolic_values: SymbolicValues) -> int:
    """Write what is taken out of a Shape in several steps as one Shape; return how many were.

    ``unsqueeze(gather(shape(x), i), 0) = shape(x, start=i, end=i+1)``: what Slice, Reshape and
    Expand read as a list. Lengths that are read as a scalar keep their Gather.
    """
    if model.opset_imports.get("", 0) < _SHAPE_PARTS_OPSET:
        return 0
    editor = edit.Editor(model.graph)
    count = 0
    for node in edit.walk_nodes(model):
        if node.domain or node.op_type not in _PASSING or node.graph is None:
            continue
        value = node.outputs[0]
        part = symbolic_values.parts.get(value)
        if part is None or part.scalar or value in symbolic_values.arrays or not part.items:
            continue
        source = _find_measured(node)
        shape = edit.shape_of(source)
        if source is None or shape is None or None in part.items:
            continue
        size = len(part.items)
        starts = [i for i in range(len(shape)) if shape[i : i + size] == part.items]
        if starts:
            limits = {"start": starts[0], "end": starts[0] + size}
            name = f"{node.name}_length"
            length = editor.add_node(node, "Shape", [source], limits, name=name, like=value)
            count += edit.redirect_uses(value, length)
    return count


def _find_measured(node: ir.Node) -> ir.Value | None:
    """Return the tensor whose Shape a short chain of takings begins with."""
    for _ in range(_LONGEST_CHAIN):
        before = match.find_producer(node.inputs[0] if node.inputs else None, "Shape", *_PASSING)
        if before is None or before.op_type == "Shape":
            return before.inputs[0] if before is not None else None
        node = before
    return None
