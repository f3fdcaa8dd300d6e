"""Pairs of models that arrive quantized: turned back into float, or fit for a runtime."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit, qdq
from ortune.graph.ir.match import find_consumer, find_other_operand, find_producer
from ortune.quantizers.common import nodes
from ortune.quantizers.common.grid import Grid
from ortune.quantizers.common.qdq import runtime_rules

_POSITIVE = ("Clip", "Relu", "Sigmoid", "Softmax", "HardSigmoid")


def find_activation_pairs(graph: edit.Graph) -> list[ir.Node]:
    """Return the QuantizeLinear of activations that only DequantizeLinear read, grid constant."""
    quantize_nodes = []
    for node in graph:
        if node.op_type != "QuantizeLinear" or not qdq.has_runtime_domain(node):
            continue
        value = node.outputs[0]
        readers = qdq.list_consumers(value)
        dequantize = all(r.op_type == "DequantizeLinear" and r.graph is graph for r in readers)
        constant = edit.const_tensor(node.inputs[0]) is not None
        fit = readers and dequantize and not value.is_graph_output() and not constant
        if fit and qdq.read_grid(node) is not None:
            quantize_nodes.append(node)
    return quantize_nodes


def map_activation_pairs(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return tensor -> the QuantizeLinear of its pairs, of all graphs in order."""
    pairs: dict[str, list[ir.Node]] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in find_activation_pairs(graph):
            source = find_rounded(node)
            pairs.setdefault(str(source.name) if source is not None else "", []).append(node)
    return pairs


_CARRIED = ("Add", "BatchNormalization", "Clip", "Div", "Mul", "Relu", "Sub")
"""OpenVINO rounds before these, and before the Concat that they follow, what is rounded after."""


def bound_joined(model: ir.Model) -> int:
    """Cut off what a pair behind a Concat rounds at the pair's upper end, which changes nothing.

    OpenVINO rounds the parts of a Concat in its place; where a zero point is not the least integer
    it then computes the layers behind in float, up to three times as slow, or wrongly. It does not
    look through a Min. Measured: openvino 2026.4.1, ``test_runtime_rules_openvino.py``.

    Returns:
        Pairs that got a Min.
    """
    count = 0
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in find_activation_pairs(graph):
            source, grid = node.inputs[0], qdq.read_grid(node)
            assert source is not None and grid is not None
            if _starts_at_zero(grid) or not _is_joined(source):
                continue
            editor = edit.Editor(graph)
            top = editor.add_constant(f"{source.name}_top", _find_top(grid))
            name = f"{source.name}_bounded"
            bound = editor.add_node(node, "Min", [source, top], name=name, like=source)
            node.replace_input_with(0, bound)
            count += 1
    return count


def _is_joined(value: ir.Value) -> bool:
    while (node := value.producer()) is not None and node.op_type in _CARRIED:
        if any(edit.const_tensor(other) is None for other in node.inputs[1:] if other is not None):
            return False
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return node is not None and node.op_type == "Concat" and not node.domain


def _starts_at_zero(grid: qdq.ConstantGrid) -> bool:
    return bool((grid.zero == np.iinfo(grid.zero.dtype).min).all())


def _find_top(grid: qdq.ConstantGrid) -> NDArray[Any]:
    steps = np.iinfo(grid.zero.dtype).max - grid.zero.astype(np.int32)
    return np.asarray((steps * grid.scale.astype(np.float32)).max(), grid.scale.dtype)


def find_rounded(node: ir.Node) -> ir.Value | None:
    """Return the tensor that a QuantizeLinear rounds, before the Min of `bound_joined`."""
    source, grid = node.inputs[0], qdq.read_grid(node)
    bound = find_producer(source, "Min")
    if bound is None or grid is None or len(bound.inputs) != 2:
        return source
    top = edit.const_array(bound.inputs[1])
    return bound.inputs[0] if top is not None and np.array_equal(top, _find_top(grid)) else source


def drop_pair(editor: edit.Editor, node: ir.Node) -> bool:
    """Let the readers of a pair read the float tensor before it.

    A grid that starts at zero also stands for the Relu or Clip that quantizers drop in front of
    it: a Clip to the grid's ends takes its place, unless the tensor is bounded already.
    """
    source, grid = find_rounded(node), qdq.read_grid(node)
    if source is None or grid is None or grid.scale.dtype.kind in "iub":
        return False
    late = qdq.list_consumers(node.outputs[0])
    if any(reader.outputs[0].is_graph_output() for reader in late):
        return False
    bounded = find_producer(source, *_POSITIVE) is not None
    if _starts_at_zero(grid) and not bounded:
        low = np.asarray(0, grid.scale.dtype)
        ends = nodes.add_constants(editor, str(source.name), low=low, high=_find_top(grid))
        name = f"{source.name}_clip"
        source = editor.add_node(node, "Clip", [source, *ends], name=name, like=source)
    for reader_ in late:
        reader_.outputs[0].replace_all_uses_with(source)
        edit.take_out(reader_)
    seen = node.inputs[0]
    edit.take_out(node)
    nodes.discard_upstream(seen)
    return True


def restore_float(model: ir.Model) -> int:
    """Make a quantized model a float32 one: pairs out, weights widened, integer layers float.

    Operators of QOperator form, and what is rounded in another way, are left.

    Returns:
        Nodes that went.
    """
    edit.inline_functions(model)
    count = 0
    for graph in [model.graph, *model.graph.subgraphs()]:
        editor = edit.Editor(graph)
        layers = FloatLayers(editor, at_load=False)
        for node in list(graph):
            if node.op_type in ("ConvInteger", "MatMulInteger") and not node.domain:
                count += layers.rewrite_node(node)
        count += sum(drop_pair(editor, node) for node in find_activation_pairs(graph))
        for node in list(graph):
            count += _store_float(editor, node)
    return count


def _store_float(editor: edit.Editor, node: ir.Node) -> bool:
    """Store the float values of a constant behind a DequantizeLinear, or Cast and Mul."""
    array: NDArray[np.float32] | None = None
    if node.op_type == "DequantizeLinear" and qdq.has_runtime_domain(node):
        array, grid = edit.const_array(node.inputs[0]), qdq.read_grid(node)
        if array is None or grid is None or grid.scale.dtype != np.float32:
            array = None
        else:
            on = Grid(grid.scale, grid.zero, None if grid.single else grid.axis)
            array = on.dequantize(array).reshape(array.shape)
    elif node.op_type == "Mul" and not node.domain:
        cast = next((m for v in node.inputs if (m := find_producer(v, "Cast")) is not None), None)
        integers = edit.const_array(cast.inputs[0]) if cast is not None else None
        other = find_other_operand(node, cast.outputs[0]) if cast is not None else None
        factor = edit.const_array(other)
        if integers is not None and factor is not None and integers.dtype == np.int8:
            fits = factor.dtype == np.float32 and factor.ndim <= integers.ndim
            array = integers.astype(np.float32) * factor if fits else None
    value = node.outputs[0]
    if array is None or value.is_graph_output():
        return False
    value.replace_all_uses_with(editor.add_constant(f"{value.name}_wide", array))
    nodes.discard_upstream(node.outputs[0])
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

    def rewrite_node(self, node: ir.Node) -> bool:
        """Rewrite one integer node with the Cast, scales and DynamicQuantizeLinear around it."""
        rounding = find_producer(node.inputs[0], "DynamicQuantizeLinear")
        chain = _follow_scales(node, rounding)
        if rounding is None or chain is None:
            return False
        last, scale = chain
        array = edit.const_array(node.inputs[1])
        zero = edit.const_array(qdq.find_input(node, 3))
        if array is None or (zero is None and qdq.find_input(node, 3) is not None):
            return False
        convolves = node.op_type == "ConvInteger"
        axis = 0 if convolves else array.ndim - 1
        steps = _broadcast_scale(scale, array.ndim, axis, array.shape[axis], convolves)
        offset = np.zeros(1, np.int32) if zero is None else zero.astype(np.int32)
        if steps is None or offset.size not in (1, array.shape[axis]):
            return False
        offset = offset.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        wide = array.astype(np.int32) - offset
        stem = str(node.inputs[1].name) if node.inputs[1] is not None else "weight"
        if not self._at_load:
            weight = self._editor.add_constant(f"{stem}_float", wide.astype(np.float32) * steps)
        else:
            limits = np.iinfo(np.int8)
            small = wide.min(initial=0) >= limits.min and wide.max(initial=0) <= limits.max
            integers = self._editor.add_constant(
                f"{stem}_int", wide.astype(np.int8 if small else np.int16)
            )
            factor = self._editor.add_constant(f"{stem}_factor", steps)
            cast_and_mul = nodes.make_cast_and_mul(self._editor, stem, integers, factor)
            edit.insert_before(node, *cast_and_mul)
            weight = cast_and_mul[1].outputs[0]
        op = "Conv" if convolves else "MatMul"
        float_node = self._editor.make_node(
            op, [rounding.inputs[0], weight], dict(node.attributes), name=f"{node.name}_{op}"
        )
        edit.insert_before(node, float_node)
        end = self._move_bias(float_node, last) if convolves else last
        nodes.replace_value(end.outputs[0], float_node.outputs[0])
        return True

    def _move_bias(self, conv: ir.Node, last: ir.Node) -> ir.Node:
        """Give the convolution the bias that is added behind it; return the last node."""
        add = find_consumer(last.outputs[0], "Add")
        bias = find_other_operand(add, last.outputs[0]) if add is not None else None
        array = edit.const_array(bias)
        if array is None:
            source = find_producer(bias, "Reshape")
            array = edit.const_array(source.inputs[0]) if source is not None else None
        weight = conv.inputs[1]
        assert weight is not None and weight.shape is not None
        if add is None or array is None or array.size != weight.shape[0]:
            return last
        constant = self._editor.add_constant(
            f"{conv.name}_bias", array.reshape(-1).astype(np.float32)
        )
        qdq.set_input(conv, 2, constant)
        return add


def _follow_scales(node: ir.Node, rounding: ir.Node | None) -> tuple[ir.Node, NDArray[Any]] | None:
    """Return the last Mul of Cast and scales behind an integer node, and the weight's scale."""
    cast = find_consumer(node.outputs[0], "Cast")
    if cast is None or rounding is None:
        return None
    step = rounding.outputs[1]
    last = find_consumer(cast.outputs[0], "Mul")
    factor = find_other_operand(last, cast.outputs[0]) if last is not None else None
    if last is None or factor is None:
        return None
    joined = find_producer(factor, "Mul")
    if joined is not None and step in joined.inputs:
        scale = edit.const_array(find_other_operand(joined, step))
        return None if scale is None else (last, scale)
    after = find_consumer(last.outputs[0], "Mul")
    second = find_other_operand(after, last.outputs[0]) if after is not None else None
    if after is None or second is None or step not in (factor, second):
        return None
    scale = edit.const_array(second if factor is step else factor)
    return None if scale is None else (after, scale)


def _broadcast_scale(
    scale: NDArray[Any], rank: int, axis: int, size: int, convolves: bool
) -> NDArray[np.float32] | None:
    if scale.size == 1:
        return scale.reshape(()).astype(np.float32)
    where = scale.ndim - (rank - 1 if convolves else 1)
    if scale.size != size or where < 0 or scale.shape[where] != size:
        return None
    shape: Sequence[int] = [-1 if i == axis else 1 for i in range(rank)]
    return scale.reshape(shape).astype(np.float32)


def write_for_runtime(model: ir.Model, target: runtime_rules.Target) -> int:
    """Write what a runtime misreads beside pairs in a way that it reads; return how often."""
    count = bound_joined(model) if runtime_rules.bounds_joined(target) else 0
    if runtime_rules.misreads_lengths(target):
        count += write_lengths(model)
    return count


def write_lengths(model: ir.Model) -> int:
    """Write each length that alone is not known of its tensor as the size over the other lengths.

    OpenVINO reads all lengths that it knows to be equal from one tensor, often what the first
    convolution makes. Its scale, bias and rounding then stay out of the integer kernel, and the
    layers behind read other numbers: 2 dB instead of 146 for a convolution, a MaxPool and a state
    of zeros for each sample. It does not see that a Size over a constant is such a length.
    Measured: openvino 2026.4.1, ``test_runtime_rules_openvino.py``.

    Returns:
        Lengths that were written so.
    """
    count = 0
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in [node for node in graph if node.op_type == "Shape" and not node.domain]:
            shape = edit.shape_of(node.inputs[0]) or ()
            start = node.attributes.get_int("start", 0)
            end = min(node.attributes.get_int("end", len(shape)), len(shape))
            static = [n for n in (*shape[:start], *shape[end:]) if isinstance(n, int) and n]
            if start < 0 or end != start + 1 or isinstance(shape[start], int):
                continue
            if len(static) < len(shape) - 1:
                continue
            editor, name = edit.Editor(graph), node.outputs[0].name
            others_size = np.array([math.prod(static)], np.int64)
            divisor = editor.add_constant(f"{name}_others", others_size)
            size = editor.make_node("Size", [node.inputs[0]], name=f"{name}_size")
            length = editor.make_node("Div", [size.outputs[0], divisor], name=f"{name}_length")
            count += edit.replace_node(node, size, length)
    return count
