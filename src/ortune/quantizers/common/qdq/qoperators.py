"""How each operator between pairs is written as one integer operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.nodes import (
    add_constants,
    add_unary_sum,
    make_dequantize,
    replace_output,
    replace_value,
    transfer_attributes,
)
from ortune.quantizers.common.qdq.placement import OPSET
from ortune.quantizers.common.qdq.runtime_rules import MOVING
from ortune.transforms.common.simplify.clamps import read_clamp

_ELEMENTWISE_TEXT = "Add Mul Concat AveragePool GlobalAveragePool LeakyRelu Sigmoid Softmax"
ELEMENTWISE = frozenset(_ELEMENTWISE_TEXT.split())
"""Operators that com.microsoft has by the name QLinear..., of integers with scalar grids."""

MOVES = frozenset({"DepthToSpace", *MOVING}) - {"Expand"}
Inputs: TypeAlias = list[ir.Value | None]


@dataclass(frozen=True)
class IntegerOperator:
    """An integer operator in the place of a float one and the nodes around it."""

    op: str  # operator; of com.microsoft if `foreign`
    inputs: Inputs
    attributes: Mapping[str, ir.Attr]
    last: ir.Node  # the node whose output it makes: the QuantizeLinear, or the float node itself
    foreign: bool = False


@dataclass(frozen=True)
class Integers:
    """Integers and their grid, as parts of an integer operator."""

    node: ir.Node  # the DequantizeLinear that reads them, or the QuantizeLinear that makes them
    values: ir.Value
    scale: ir.Value
    zero: ir.Value
    grid: qdq.ConstantGrid

    @property
    def parts(self) -> Inputs:
        """Integers, scale, zero point: the order of most operators."""
        return [self.values, self.scale, self.zero]

    def has_same_dtype(self, other: Integers) -> bool:
        """Say whether both have one dtype."""
        return self.grid.zero.dtype == other.grid.zero.dtype


class Operators:
    """Finds the integer operator of a node; constants are made scalars once."""

    def __init__(self, editor: edit.Editor) -> None:
        self._editor = editor
        self._scalars: dict[ir.Value, ir.Value] = {}
        self._converters = {
            "Conv": self._convert_conv,
            "MatMul": self._convert_matmul,
            "Gemm": self._convert_gemm,
        }
        self._converters |= dict.fromkeys(ELEMENTWISE, self._convert_elementwise)
        self._converters |= dict.fromkeys(MOVES, self._convert_mover)

    def find_operator(self, node: ir.Node) -> IntegerOperator | None:
        """Return what the node becomes, None when it stays in float."""
        converter = self._converters.get(node.op_type)
        return None if converter is None or node.domain or not node.outputs else converter(node)

    def _read_input(self, value: ir.Value | None, *, scalar: bool = True) -> Integers | None:
        """Return the integers behind a DequantizeLinear, with a scalar grid unless a weight."""
        node = qdq.find_runtime_producer(value, "DequantizeLinear")
        integers = None if node is None else self._read_integers(node, node.inputs[0])
        return None if integers is None or (scalar and not integers.grid.single) else integers

    def _read_output(self, node: ir.Node) -> Integers | None:
        """Return the integers made behind a node; a Relu or Clip that they repeat is skipped."""
        behind = edit.only_reader(node.outputs[0])
        if behind is not None and behind.op_type in ("Relu", "Clip") and not behind.domain:
            after = edit.only_reader(behind.outputs[0])
            grid = qdq.read_grid(after) if after is not None else None
            if after is None or grid is None or not is_redundant_clamp(behind, grid):
                return None
            behind = after
        if behind is None or not _is_quantize(behind):
            return None
        integers = self._read_integers(behind, behind.outputs[0])
        return integers if integers is not None and integers.grid.single else None

    def _read_integers(self, node: ir.Node, values: ir.Value | None) -> Integers | None:
        grid = qdq.read_grid(node)
        if grid is None or grid.zero.dtype not in (np.uint8, np.int8):
            return None
        scale, zero = qdq.find_input(node, 1), qdq.find_input(node, 2)
        assert values is not None and scale is not None
        if zero is None:
            zero = self._editor.add_constant(f"{node.name}_zero", grid.zero)
        if grid.single:
            scale, zero = self._make_scalar(scale), self._make_scalar(zero)
        return Integers(node, values, scale, zero, grid)

    def _make_scalar(self, value: ir.Value) -> ir.Value:
        array = edit.const_array(value)
        if array is None or array.ndim == 0:
            return value
        if value not in self._scalars:
            self._scalars[value] = self._editor.add_constant(
                f"{value.name}_scalar", array.reshape(())
            )
        return self._scalars[value]

    def _convert_conv(self, node: ir.Node) -> IntegerOperator | None:
        x, end = self._read_input(node.inputs[0]), self._read_output(node)
        w = self._read_input(node.inputs[1], scalar=False)
        if x is None or w is None or end is None or not qdq.is_weight(node.inputs[1]):
            return None
        if not (w.grid.single or w.grid.axis == 0) or not end.has_same_dtype(x):
            return None
        if (bias := self._convert_bias(node, x, w)) is None:
            return None
        inputs = [*x.parts, *w.parts, end.scale, end.zero, *bias]
        return IntegerOperator("QLinearConv", inputs, node.attributes, end.node)

    def _convert_matmul(self, node: ir.Node) -> IntegerOperator | None:
        a, end = self._read_input(node.inputs[0]), self._read_output(node)
        b = self._read_input(node.inputs[1], scalar=False)
        if a is None or b is None or end is None or not end.has_same_dtype(a):
            return None
        tensor = edit.const_tensor(b.values)
        columns = tensor is not None and len(tensor.shape) == 2 and b.grid.axis % 2 == 1
        if not b.grid.single and not columns:
            return None
        inputs: Inputs = [*a.parts, *b.parts, end.scale, end.zero]
        return IntegerOperator("QLinearMatMul", inputs, {}, end.node)

    def _convert_gemm(self, node: ir.Node) -> IntegerOperator | None:
        a, b = self._read_input(node.inputs[0]), self._read_input(node.inputs[1], scalar=False)
        attributes = transfer_attributes(node, "QGemm")
        if a is None or b is None or attributes is None:
            return None
        channels = 0 if edit.read_attribute(node, "transB", 0) else 1
        if not b.grid.single and b.grid.axis % 2 != channels:
            return None
        bias = self._convert_bias(node, a, b)
        if bias is None or (bias and float(edit.read_attribute(node, "alpha", 1.0)) != 1.0):
            return None
        inputs: Inputs = [*a.parts, *b.parts, bias[0] if bias else None]
        end = self._read_output(node)
        if end is not None and end.has_same_dtype(a):
            inputs += [end.scale, end.zero]
            return IntegerOperator("QGemm", inputs, attributes, end.node, True)
        return IntegerOperator("QGemm", inputs, attributes, node, True)

    def _convert_elementwise(self, node: ir.Node) -> IntegerOperator | None:
        """Take an operator whose inputs all have a scalar grid; a Concat names its own first."""
        end = self._read_output(node)
        inputs: Inputs = []
        for value in node.inputs:
            operand = self._read_input(value)
            if end is None or operand is None or not operand.has_same_dtype(end):
                return None
            inputs += operand.parts
        op = f"QLinear{node.op_type}"
        attributes = transfer_attributes(node, op)
        if end is None or attributes is None:
            return None
        grid = [end.scale, end.zero]
        inputs = [*grid, *inputs] if node.op_type == "Concat" else [*inputs, *grid]
        if node.op_type == "Softmax":
            attributes["opset"] = ir.AttrInt64("opset", 13)
            attributes.setdefault("axis", ir.AttrInt64("axis", -1))
        return IntegerOperator(op, inputs, attributes, end.node, True)

    def _convert_mover(self, node: ir.Node) -> IntegerOperator | None:
        x, end = self._read_input(node.inputs[0]), self._read_output(node)
        if x is None or end is None or not x.grid.is_same_grid(end.grid):
            return None
        if len(node.outputs) > 1 and node.outputs[1].uses():
            return None
        inputs: Inputs = [x.values, *node.inputs[1:]]
        return IntegerOperator(node.op_type, inputs, node.attributes, end.node)

    def _convert_bias(self, node: ir.Node, x: Integers, w: Integers) -> list[ir.Value] | None:
        """Return the bias in the steps of the product, no item without one; None: impossible."""
        value = qdq.find_input(node, 2)
        if value is None:
            return []
        steps = x.grid.scale.reshape(()).astype(np.float64) * w.grid.scale.reshape(-1)
        wide = qdq.find_runtime_producer(value, "DequantizeLinear")
        array = edit.const_array(value)
        if wide is not None:
            grid, integers = qdq.read_grid(wide), edit.const_array(wide.inputs[0])
            if grid is None or integers is None or integers.dtype != np.int32 or grid.zero.any():
                return None
            if np.allclose(grid.scale.reshape(-1), steps, rtol=1e-5, atol=0):
                return [value for value in wide.inputs[:1] if value is not None]
            array = integers * grid.scale.astype(np.float64)
        if array is None or array.ndim > 2 or array.size != array.shape[-1]:
            return None
        rounded = np.rint(array.reshape(-1) / steps)
        if np.abs(rounded).max(initial=0) > np.iinfo(np.int32).max:
            return None
        return [self._editor.add_constant(f"{value.name}_int32", rounded.astype(np.int32))]


def is_redundant_clamp(node: ir.Node, grid: qdq.ConstantGrid) -> bool:
    """Whether a grid ends where a Relu or Clip cuts, or within: it need not be written."""
    limits = np.iinfo(grid.zero.dtype)
    scale, zero = float(grid.scale.reshape(-1)[0]), int(grid.zero.reshape(-1)[0])
    low, high = (limits.min - zero) * scale, (limits.max - zero) * scale
    bounds, slack = read_clamp(node.outputs[0], OPSET), scale * 1e-3
    return bounds is not None and low >= bounds.low - slack and high <= bounds.high + slack


_CUTS = ("Relu", "Clip")


def separate_products(editor: edit.Editor, layers: Iterable[Layer]) -> None:
    """Put a Sum of one behind every product that its readers would keep in float.

    onnxruntime's CPU provider takes a product between pairs only with everything behind it
    (qdq_selectors.cc, GetQDQSelection and CheckQDQNodes). Its kernel writes

    - integers, where one QuantizeLinear reads the product and nothing else does, or a Relu or Clip
      whose only reader is a QuantizeLinear with a grid that cuts as much;
    - floats, where no QuantizeLinear reads it, nor a Relu or Clip that one node reads.

    In every other case the product stays in float, and its weight is made float in every run:
    slower than no pair at all. What the Sum copies is small beside that.
    """
    ends = [_find_product_output(layer.node) for layer in layers if not layer.convolves]
    wrong = [end for end in dict.fromkeys(ends) if not _has_integer_kernel(end)]
    for end in wrong:
        home, uses = end.graph, tuple(end.uses())
        whole = add_unary_sum(editor, end, "parted")
        for node, index in uses:
            node.replace_input_with(index, whole)
        if end.is_graph_output():
            assert home is not None
            replace_output(editor, home, end, whole)


def write_hard_swish(model: ir.Model, editor: edit.Editor) -> None:
    """Write hard-swish between pairs as an Add and a Mul, which onnxruntime computes in integers.

    ``x clip(a x + b, 0, 1)``: the grid of the line's result ends at 0 and 1, so that rounding onto
    it clips. The same integers with steps `a` times as large stand for ``a x``.
    """
    for node in list(edit.walk_nodes(model)):
        if node.domain or node.op_type not in ("HardSwish", "HardSigmoid"):
            continue
        whole, slope, offset = node.op_type == "HardSwish", 1 / 6, 0.5
        x, product = node.inputs[0], node if whole else edit.only_reader(node.outputs[0])
        if not whole:
            slope = float(edit.read_attribute(node, "alpha", 0.2))
            offset = float(edit.read_attribute(node, "beta", offset))
            if product is None or product.op_type != "Mul" or x not in product.inputs:
                continue
        reader = None if product is None else edit.only_reader(product.outputs[0])
        late = qdq.find_runtime_producer(x, "DequantizeLinear")
        grid = None if late is None else qdq.read_grid(late)
        if late is None or grid is None or reader is None or not _is_quantize(reader):
            continue
        plain = grid.single and grid.zero.dtype.itemsize == 1 and grid.scale.dtype == np.float32
        if not (
            plain and qdq.is_rounded(x) and len(late.inputs) == 3 and slope > 0 and offset > 0
        ):
            continue
        (integers, _, zero), stem, dtype = late.inputs, str(node.outputs[0].name), grid.zero.dtype
        assert x is not None
        assert integers is not None
        assert zero is not None
        steps = np.asarray(grid.scale * np.float32(slope), np.float32)
        (steep,) = add_constants(editor, stem, slope=steps)
        shift = add_constants(
            editor,
            f"{stem}_offset",
            one=np.asarray(1, dtype),
            scale=np.asarray(offset, np.float32),
            zero=np.asarray(0, dtype),
        )
        unit = add_constants(
            editor,
            f"{stem}_unit",
            scale=np.asarray(1 / 255, np.float32),
            zero=np.asarray(np.iinfo(dtype).min, dtype),
        )
        parts = (
            make_dequantize(editor, f"{stem}_steep", [integers, steep, zero]),
            make_dequantize(editor, f"{stem}_offset", shift),
        )
        line = editor.make_node("Add", [part.outputs[0] for part in parts], name=f"{stem}_line")
        clip = editor.make_node("QuantizeLinear", [line.outputs[0], *unit], name=f"{stem}_line_q")
        gate = make_dequantize(editor, f"{stem}_line", [clip.outputs[0], *unit])
        clip.outputs[0].dtype = ir.DataType.from_numpy(dtype)
        nodes, end = [*parts, line, clip, gate], gate.outputs[0]
        if whole:
            nodes.append(editor.make_node("Mul", [x, end], name=f"{stem}_gated"))
            end = nodes[-1].outputs[0]
        for value in (line.outputs[0], clip.outputs[0], gate.outputs[0]):
            value.shape = x.shape
        line.outputs[0].type = x.type
        edit.insert_before(node, *nodes)
        replace_value(node.outputs[0], end)


def _find_product_output(node: ir.Node) -> ir.Value:
    """Return what the product writes: onnxruntime joins a MatMul of matrices and an Add to one."""
    value = node.outputs[0]
    reader, shape = edit.only_reader(value), value.shape
    joined = node.op_type == "MatMul" and shape is not None and len(shape) == 2
    if joined and reader is not None and reader.op_type == "Add" and not reader.domain:
        return reader.outputs[0]
    return value


def _has_integer_kernel(value: ir.Value) -> bool:
    """Say whether onnxruntime takes a product that writes a value."""
    reader = edit.only_reader(value)
    if any(_is_quantize(use.node) for use in value.uses()):
        return reader is not None
    if reader is None or reader.op_type not in _CUTS or reader.domain:
        return True
    cut = reader.outputs[0]
    if not edit.has_single_use(cut):
        return True
    behind = edit.only_reader(cut)
    if behind is None or not _is_quantize(behind):
        return False
    grid = qdq.read_grid(behind)
    return grid is not None and grid.single and is_redundant_clamp(reader, grid)


def _is_quantize(node: ir.Node) -> bool:
    return node.op_type == "QuantizeLinear" and qdq.has_runtime_domain(node)
