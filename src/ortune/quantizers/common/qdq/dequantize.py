"""Parts of models that arrive quantized, turned back into float."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit, qdq
from ortune.graph.ir.match import maker, other, reader
from ortune.quantizers.common.grid import Grid
from ortune.quantizers.common.nodes import cast_and_multiplied, constants, discard_back, stand_in

_POSITIVE = ("Clip", "Relu", "Sigmoid", "Softmax", "HardSigmoid")


def pairs(graph: edit.Graph) -> list[ir.Node]:
    """Return the QuantizeLinear of activations that only DequantizeLinear read, grid constant."""
    found = []
    for node in graph:
        if node.op_type != "QuantizeLinear" or not qdq.ours(node):
            continue
        value = node.outputs[0]
        readers = qdq.readers(value)
        dequantize = all(r.op_type == "DequantizeLinear" and r.graph is graph for r in readers)
        constant = edit.const_tensor(node.inputs[0]) is not None
        fit = readers and dequantize and not value.is_graph_output() and not constant
        if fit and qdq.grid(node) is not None:
            found.append(node)
    return found


def drop_pair(editor: edit.Editor, node: ir.Node) -> bool:
    """Let the readers of a pair read the float tensor before it.

    A grid that starts at zero also stands for the Relu or Clip that quantizers drop in front of
    it: a Clip to the grid's ends takes its place, unless the tensor is bounded already.
    """
    source, grid = node.inputs[0], qdq.grid(node)
    if source is None or grid is None or grid.scale.dtype.kind in "iub":
        return False
    late = qdq.readers(node.outputs[0])
    if any(reader.outputs[0].is_graph_output() for reader in late):
        return False
    limits = np.iinfo(grid.zero.dtype)
    bounded = maker(source, *_POSITIVE) is not None
    if (grid.zero == limits.min).all() and not bounded:
        high = (int(limits.max) - int(limits.min)) * float(grid.scale.max())
        low, top = (np.asarray(end, grid.scale.dtype) for end in (0, high))
        ends = constants(editor, str(source.name), low=low, high=top)
        clip = editor.node("Clip", [source, *ends], name=f"{source.name}_clip")
        clip.outputs[0].shape, clip.outputs[0].type = source.shape, source.type
        edit.insert_before(node, clip)
        source = clip.outputs[0]
    for reader_ in late:
        reader_.outputs[0].replace_all_uses_with(source)
        edit.take_out(reader_)
    edit.take_out(node)
    return True


def widened(node: ir.Node) -> NDArray[np.float32] | None:
    """Return the float array that a DequantizeLinear of a constant stands for."""
    array, grid = edit.const_array(node.inputs[0]), qdq.grid(node)
    if array is None or grid is None or grid.scale.dtype != np.float32:
        return None
    on = Grid(grid.scale, grid.zero, None if grid.single else grid.axis)
    return on.dequantize(array).reshape(array.shape)


def restore(model: ir.Model) -> int:
    """Make a quantized model a float32 one: pairs out, weights widened, integer layers float.

    Operators of QOperator form, and what is rounded in another way, are left.

    Returns:
        Nodes that went.
    """
    edit.inline(model)
    count = 0
    for graph in [model.graph, *model.graph.subgraphs()]:
        editor = edit.Editor(graph)
        layers = FloatLayers(editor, at_load=False)
        for node in list(graph):
            if node.op_type in ("ConvInteger", "MatMulInteger") and not node.domain:
                count += layers.rewrite(node)
        count += sum(drop_pair(editor, node) for node in pairs(graph))
        for node in list(graph):
            count += _widen(editor, node)
    return count


def _widen(editor: edit.Editor, node: ir.Node) -> bool:
    """Store the float values of a constant behind a DequantizeLinear, or Cast and Mul."""
    array: NDArray[np.float32] | None = None
    if node.op_type == "DequantizeLinear" and qdq.ours(node):
        array = widened(node)
    elif node.op_type == "Mul" and not node.domain:
        cast = next((m for v in node.inputs if (m := maker(v, "Cast")) is not None), None)
        held = edit.const_array(cast.inputs[0]) if cast is not None else None
        factor = edit.const_array(other(node, cast.outputs[0])) if cast is not None else None
        if held is not None and factor is not None and held.dtype == np.int8:
            fits = factor.dtype == np.float32 and factor.ndim <= held.ndim
            array = held.astype(np.float32) * factor if fits else None
    value = node.outputs[0]
    if array is None or value.is_graph_output():
        return False
    value.replace_all_uses_with(editor.constant(f"{value.name}_wide", array))
    discard_back(node.outputs[0])
    return True


class FloatLayers:
    """Turns ConvInteger and MatMulInteger chains into Conv and MatMul on float weights.

    Args:
        at_load: Keep the integers in the file, behind Cast and Mul that onnxruntime folds when it
            loads the model; else store float32.
    """

    def __init__(self, editor: edit.Editor, *, at_load: bool) -> None:
        self._editor = editor
        self._at_load = at_load

    def rewrite(self, node: ir.Node) -> bool:
        """Rewrite one integer node with the Cast, scales and DynamicQuantizeLinear around it."""
        rounding = maker(node.inputs[0], "DynamicQuantizeLinear")
        chain = _chain(node, rounding)
        if rounding is None or chain is None:
            return False
        last, scale = chain
        array = edit.const_array(node.inputs[1])
        zero = edit.const_array(qdq.given(node, 3))
        if array is None or (zero is None and qdq.given(node, 3) is not None):
            return False
        convolves = node.op_type == "ConvInteger"
        axis = 0 if convolves else array.ndim - 1
        steps = _along(scale, array.ndim, axis, array.shape[axis], convolves)
        offset = np.zeros(1, np.int32) if zero is None else zero.astype(np.int32)
        if steps is None or offset.size not in (1, array.shape[axis]):
            return False
        offset = offset.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        weight = self._weight(node, array.astype(np.int32) - offset, steps)
        op = "Conv" if convolves else "MatMul"
        made = self._editor.node(
            op, [rounding.inputs[0], weight], dict(node.attributes), name=f"{node.name}_{op}"
        )
        edit.insert_before(node, made)
        end = self._bias(made, last) if convolves else last
        stand_in(end.outputs[0], made.outputs[0])
        return True

    def _weight(
        self, node: ir.Node, wide: NDArray[np.int32], steps: NDArray[np.float32]
    ) -> ir.Value:
        stem = str(node.inputs[1].name) if node.inputs[1] is not None else "weight"
        if not self._at_load:
            return self._editor.constant(f"{stem}_float", wide.astype(np.float32) * steps)
        limits = np.iinfo(np.int8)
        small = wide.min(initial=0) >= limits.min and wide.max(initial=0) <= limits.max
        held = self._editor.constant(f"{stem}_int", wide.astype(np.int8 if small else np.int16))
        factor = self._editor.constant(f"{stem}_factor", steps)
        made = cast_and_multiplied(self._editor, stem, held, factor)
        edit.insert_before(node, *made)
        return made[1].outputs[0]

    def _bias(self, conv: ir.Node, last: ir.Node) -> ir.Node:
        """Give the convolution the bias that is added behind it; return the last node."""
        add = reader(last.outputs[0], "Add")
        bias = other(add, last.outputs[0]) if add is not None else None
        array = edit.const_array(bias)
        if array is None:
            source = maker(bias, "Reshape")
            array = edit.const_array(source.inputs[0]) if source is not None else None
        weight = conv.inputs[1]
        assert weight is not None and weight.shape is not None
        if add is None or array is None or array.size != weight.shape[0]:
            return last
        held = self._editor.constant(f"{conv.name}_bias", array.reshape(-1).astype(np.float32))
        qdq.put(conv, 2, held)
        return add


def _chain(node: ir.Node, rounding: ir.Node | None) -> tuple[ir.Node, NDArray[Any]] | None:
    """Return the last Mul of Cast and scales behind an integer node, and the weight's scale."""
    cast = reader(node.outputs[0], "Cast")
    if cast is None or rounding is None:
        return None
    step = rounding.outputs[1]
    last = reader(cast.outputs[0], "Mul")
    factor = other(last, cast.outputs[0]) if last is not None else None
    if last is None or factor is None:
        return None
    joined = maker(factor, "Mul")
    if joined is not None and step in joined.inputs:
        scale = edit.const_array(other(joined, step))
        return None if scale is None else (last, scale)
    after = reader(last.outputs[0], "Mul")
    second = other(after, last.outputs[0]) if after is not None else None
    if after is None or second is None or step not in (factor, second):
        return None
    scale = edit.const_array(second if factor is step else factor)
    return None if scale is None else (after, scale)


def _along(
    scale: NDArray[Any], rank: int, axis: int, size: int, convolves: bool
) -> NDArray[np.float32] | None:
    if scale.size == 1:
        return scale.reshape(()).astype(np.float32)
    where = scale.ndim - (rank - 1 if convolves else 1)
    if scale.size != size or where < 0 or scale.shape[where] != size:
        return None
    shape: Sequence[int] = [-1 if i == axis else 1 for i in range(rank)]
    return scale.reshape(shape).astype(np.float32)
