"""Make fixed dimensions of inputs dynamic, where exporters have burned them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.errors import BadSettings, Refused
from ortune.core.step import Bridge, Stage, Transform
from ortune.graph.ir import edit
from ortune.graph.ir.edit import read_fixed_array, shape_of
from ortune.graph.shapes.infer import infer_node, infer_shapes
from ortune.graph.shapes.known_values import Item, SymbolicValues
from ortune.transforms.common import dims as samples

_BATCH = "batch"


@dataclass(frozen=True)
class FreeDims(Transform):
    """Fixed dimensions become dynamic: ``free-dims`` alone frees the batch.

    Targets of Reshape that hold the old number copy the dimension (0) or leave it open (-1), those
    of Expand keep it (1), sizes of Resize take it from the input, and what is the same for every
    row (a token beside the patches, the first state of a recurrent layer) is repeated. A batch
    is proved by numbers: rows together, twice and three times as many, must give what they gave
    alone. Of other dimensions the old size is compared, and twice the size must run.

    Attributes:
        dims: ``INPUT.AXIS:NAME``; none frees the first dimension of every input that is fixed
            to the same size, as ``batch``.
    """

    stage: ClassVar[Stage] = Stage.PREPARE
    automatic: ClassVar[bool] = False
    keeps_io: ClassVar[bool] = False

    dims: tuple[str, ...] = ()

    def bridge(self, model: ir.Model) -> Bridge | None:
        """Take rows apart where a batch is freed."""
        axes = self._select_fixed_axes(model)
        if not axes:
            return None
        shapes = {
            str(value.name): shape_of(value) or () for value in samples.list_required_inputs(model)
        }
        sizes = {
            n: {at: size if isinstance(size := shapes[n][at], int) else 0 for at in input_axes}
            for n, input_axes in axes.items()
        }
        outputs = free_axes(model.clone(), axes)
        names = {name for input_axes in axes.values() for name in input_axes.values()}
        first = any(0 in input_axes for input_axes in axes.values())
        distinct_sizes = {size for input_axes in sizes.values() for size in input_axes.values()}
        if len(names) == 1 and first and len(distinct_sizes) == 1:
            batch_axes = {n: next(iter(input_axes)) for n, input_axes in axes.items()}
            return samples.BatchedRows(batch_axes, distinct_sizes.pop(), outputs)
        return samples.Larger(sizes)

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many dimensions of inputs were freed.

        Raises:
            BadSettings: There is no such dimension.
            Refused: A node hard-codes the old size, in a way that is not undone.
        """
        axes = self._select_fixed_axes(model)
        if axes:
            free_axes(model, axes)
        return sum(map(len, axes.values()))

    def _select_fixed_axes(self, model: ir.Model) -> dict[str, dict[int, str]]:
        """Return input -> axis -> name of what is to be freed; what is free already is left."""
        shapes = {
            str(value.name): shape_of(value) or () for value in samples.list_required_inputs(model)
        }
        selected: dict[str, dict[int, str]] = {}
        for text, name in samples.split_pairs(self.dims, "NAME"):
            if not name.isidentifier():
                raise BadSettings(
                    f"dims: '{name}' is not a name of '{text}'", fix="use letters, such as batch"
                )
            for place, axis in samples.find_dims(model, text):
                if isinstance(shapes[place][axis], int):
                    selected.setdefault(place, {})[axis] = name
        if self.dims:
            return selected
        firsts = {name: shape[0] for name, shape in shapes.items() if shape}
        fixed = {size for size in firsts.values() if isinstance(size, int)}
        if len(fixed) > 1:
            named_sizes = ", ".join(f"{size} of '{name}'" for name, size in firsts.items())
            raise Refused(
                f"which dimension is the batch? First are {named_sizes}",
                fix=f"say it, such as free-dims(dims=[{next(iter(firsts))}.0:batch])",
            )
        return {name: {0: _BATCH} for name, size in firsts.items() if isinstance(size, int)}


Axes = Mapping[str, Mapping[int, str]]
"""Input -> axis -> the new name of its dimension."""

_TIMES = 7
_STATES = {"LSTM": {4: 0, 5: 1, 6: 1}, "GRU": {4: 0, 5: 1}, "RNN": {4: 0, 5: 1}}
"""Recurrent operator -> input that may be constant -> its axis of the batch."""


def free_axes(model: ir.Model, axes: Axes) -> dict[str, int]:
    """Free dimensions of inputs in place.

    Returns:
        For every output that grows with a freed dimension, the first axis that does.

    Raises:
        Refused: A node hard-codes the old size, in a way that is not undone; it is named.
    """
    edit.inline_functions(model)
    infer_shapes(model)
    work = _Freeing(model)
    for value in model.graph.inputs:
        work.enlarge_axes(value, axes.get(value.name or "", {}))
    for node in list(model.graph):
        work.process_node(node)
    return work.declare_dims(axes)


class _Freeing:
    def __init__(self, model: ir.Model) -> None:
        self._model, self._editor = model, edit.Editor(model.graph)
        self._symbolic_values = SymbolicValues()
        self._opsets = model.opset_imports
        outputs = [value for node in model.graph for value in node.outputs]
        self._old = {value: shape_of(value) for value in (*model.graph.inputs, *outputs)}
        for value in outputs:
            value.shape = None

    def enlarge_axes(self, value: ir.Value, axes: Mapping[int, str]) -> None:
        shape = list(self._old[value] or ())
        for axis in axes:
            size = shape[axis]
            shape[axis] = size * _TIMES if isinstance(size, int) else size
        if axes:
            value.shape = ir.Shape(shape)

    def process_node(self, node: ir.Node) -> None:
        """Rewrite a node where it must be, and infer what it makes."""
        touched = any(self._list_enlarged_axes(v) for v in node.inputs if v is not None)
        if touched and not node.domain:
            self._rewrite_node(node)
        if any(True for _ in edit.list_bodies(node)):
            inner = [n for body in edit.list_bodies(node) for n in body.all_nodes()]
            read = {v for n in (node, *inner) for v in n.inputs if v is not None}
            if any(map(self._list_enlarged_axes, read)):
                raise _make_refusal(node, "a body reads what would grow")
        infer_node(node, self._opsets, self._symbolic_values)
        for value in node.outputs:
            old, new = self._old.get(value), shape_of(value)
            if old is not None and value.name and (new is None or len(new) != len(old)):
                if touched:
                    raise _make_refusal(node, "its shape cannot be inferred")
                value.shape = ir.Shape(old)

    def declare_dims(self, axes: Axes) -> dict[str, int]:
        """Declare the dimensions by name: a freed one its own, what grows otherwise unnamed."""
        names = {name for by_axis in axes.values() for name in by_axis.values()}
        single = next(iter(names)) if len(names) == 1 else None
        sizes = {
            size
            for value in self._model.graph.inputs
            for axis, size in enumerate(self._old.get(value) or ())
            if axis in axes.get(value.name or "", {})
        }
        output_axes: dict[str, int] = {}
        for value, old in self._old.items():
            grown = self._list_enlarged_axes(value)
            if value.is_graph_output() and grown:
                output_axes[str(value.name)] = grown[0]
            if value.shape is None or old is None:
                continue
            whole = list(shape_of(value) or ())
            mine = axes.get(value.name or "", {}) if value.is_graph_input() else {}
            for axis in grown:
                same = single if old[axis] in sizes else None
                whole[axis] = mine.get(axis, same)
            value.shape = ir.Shape(whole)
        return output_axes

    def _list_enlarged_axes(self, value: ir.Value) -> list[int]:
        """Return the axes of a value that are larger than they were."""
        old, new = self._old.get(value), shape_of(value)
        if old is None or new is None or len(old) != len(new):
            return []
        return [axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]

    def _rewrite_node(self, node: ir.Node) -> None:
        match node.op_type:
            case "Reshape":
                self._rewrite_reshape(node)
            case "Expand":
                self._rewrite_expand(node)
            case "Concat":
                self._rewrite_concat(node)
            case "Resize" | "Upsample":
                self._rewrite_resize(node)
            case "LSTM" | "GRU" | "RNN":
                for index, axis in _STATES[node.op_type].items():
                    self._repeat_input(node, index, axis, node.inputs[0], 1)
            case "GridSample":
                self._repeat_input(node, 1, 0, node.inputs[0], 0)

    def _rewrite_reshape(self, node: ir.Node) -> None:
        """Copy the leading dimensions, and leave the one that grows to be worked out."""
        if len(node.inputs) < 2:
            raise _make_refusal(node, "its target is an attribute, as before opset 5")
        source, target = node.inputs[0], node.inputs[1]
        to = read_fixed_array(target)
        old_in = self._old.get(source) if source is not None else None
        old_out = self._old.get(node.outputs[0])
        if source is None or to is None:
            return  # a target that is computed follows its inputs
        new_in = shape_of(source)
        if old_in is None or old_out is None or new_in is None:
            raise _make_refusal(node, "its shapes are not known")
        new_target = _find_reshape_target(old_in, self._list_enlarged_axes(source), old_out)
        if new_target is None and not {-1, 0} & set(to.tolist()):
            raise _make_refusal(node, f"{to.tolist()} does not say which dimension grows")
        if new_target is not None and to.tolist() != new_target:
            fresh = self._editor.add_constant(f"{node.name}_to", np.array(new_target, np.int64))
            node.replace_input_with(1, fresh)
            node.attributes.pop("allowzero", None)

    def _rewrite_expand(self, node: ir.Node) -> None:
        """1 keeps what is there already."""
        source, target = node.inputs
        to = read_fixed_array(target)
        grown = self._list_enlarged_axes(source) if source is not None else []
        if to is None or source is None:
            return
        behind = len(to) - len(shape_of(source) or ())
        new_target = [1 if at - behind in grown else int(x) for at, x in enumerate(to)]
        if new_target != to.tolist():
            fresh = self._editor.add_constant(f"{node.name}_to", np.array(new_target, np.int64))
            node.replace_input_with(1, fresh)

    def _rewrite_concat(self, node: ir.Node) -> None:
        """Repeat what is the same for every row, such as a token that an exporter expanded."""
        shapes = [shape_of(value) for value in node.inputs]
        along = edit.read_attribute(node, "axis", 0)
        for value, shape in zip(node.inputs, shapes, strict=True):
            grown = self._list_enlarged_axes(value) if value is not None else []
            if value is None or shape is None:
                continue
            for axis in grown:
                if axis == along % len(shape):
                    continue
                for index in range(len(node.inputs)):
                    self._repeat_input(node, index, axis, value, axis)

    def _rewrite_resize(self, node: ir.Node) -> None:
        """Take the sizes that grow from the input."""
        if len(node.inputs) < 4 or node.inputs[3] is None or node.inputs[0] is None:
            return
        source, sizes = node.inputs[0], read_fixed_array(node.inputs[3])
        axes = edit.read_attribute(node, "axes", None)
        if sizes is None or axes is not None:
            return
        first = self._list_enlarged_axes(source)
        if first != [0] or int(sizes[0]) != (self._old.get(source) or (None,))[0]:
            raise _make_refusal(
                node, f"sizes {sizes.tolist()} do not follow the dimension that grows"
            )
        spatial_sizes = self._editor.add_constant(
            f"{node.name}_rest", np.asarray(sizes[1:], np.int64)
        )
        head = self._add_dim_size(node, source, 0)
        joined = self._add_node(
            node, "Concat", [head, spatial_sizes], f"{node.name}_sizes", axis=0
        )
        node.replace_input_with(3, joined)

    def _repeat_input(
        self, node: ir.Node, index: int, axis: int, like: ir.Value | None, of: int
    ) -> None:
        """Repeat one input of a node along an axis as often as another has there."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or like is None or value is like or self._list_enlarged_axes(value):
            return
        shape, target_shape = shape_of(value), shape_of(like)
        if shape is None or target_shape is None or of not in self._list_enlarged_axes(like):
            return
        if shape[axis] != (self._old.get(like) or target_shape)[of]:
            return
        if shape[axis] != 1:
            raise _make_refusal(node, f"'{value.name}' has a size of its own there: {shape[axis]}")
        unit_repeats = np.ones(len(shape), np.int64)
        head = self._editor.add_constant(f"{node.name}_before", unit_repeats[:axis])
        tail = self._editor.add_constant(f"{node.name}_behind", unit_repeats[axis + 1 :])
        size = self._add_dim_size(node, like, of)
        to = self._add_node(node, "Concat", [head, size, tail], f"{node.name}_repeat", axis=0)
        wide = self._add_node(node, "Expand", [value, to], f"{value.name}_repeated")
        self._old[wide] = shape
        node.replace_input_with(index, wide)

    def _add_dim_size(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        """Return one dimension of a value, int64 [1]."""
        shape = self._add_node(node, "Shape", [value], f"{node.name}_shape")
        at = self._editor.add_constant(f"{node.name}_axis", np.array([axis], np.int64))
        return self._add_node(node, "Gather", [shape, at], f"{node.name}_size")

    def _add_node(
        self, before: ir.Node, op: str, inputs: Sequence[ir.Value], name: str, **attributes: int
    ) -> ir.Value:
        node = self._editor.make_node(op, inputs, attributes, name=name)
        edit.insert_before(before, node)
        infer_node(node, self._opsets, self._symbolic_values)
        # Constant only for the size that shapes were inferred with.
        self._symbolic_values.arrays.pop(node.outputs[0], None)
        return node.outputs[0]


def _find_reshape_target(
    old_in: Sequence[Item], grown: Sequence[int], old_out: Sequence[Item]
) -> list[int] | None:
    """Return the Reshape target that holds for every size; None where there is none.

    Leading dimensions that stay are copied with 0. With one dimension that grows, and leading
    dimensions equal before it, that place holds a multiple of it: rows stay together.
    """
    same = 0
    while same < min(len(old_in), len(old_out)) and old_in[same] == old_out[same]:
        same += 1
    inside = [axis for axis in grown if axis >= same]
    copied = [0] * same
    remaining_dims = list(old_out[same:])
    if not inside:
        return _complete_target(copied, remaining_dims, None)
    first = inside[0]
    if len(inside) == 1 and first == same and remaining_dims:
        return _complete_target(copied, remaining_dims, 0)
    if len(inside) == 1 and first == same:
        return None
    if same == 0 and first == 0 and len(grown) == 1:
        return _complete_target([], list(old_out), 0)
    return _complete_target(copied, remaining_dims, 0) if len(remaining_dims) == 1 else None


def _complete_target(
    copied: list[int], remaining_dims: list[Item], open_at: int | None
) -> list[int] | None:
    """Fill in numbers; at most one place may be left to be worked out."""
    completed = [item if isinstance(item, int) else -1 for item in remaining_dims]
    if open_at is not None:
        completed[open_at] = -1
    return [*copied, *completed] if completed.count(-1) <= 1 else None


def _make_refusal(node: ir.Node, why: str) -> Refused:
    return Refused(
        f"{node.op_type} '{node.name}' hard-codes the old size: {why}",
        fix="export the model with that dimension dynamic",
    )
