"""In which precision each node computes, and which integer layers can saturate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.hardware import saturation
from ortune.graph.ir import edit, qdq
from ortune.graph.shapes.infer import infer_copy

_INTEGER_TEXT = (
    "ConvInteger DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat "
    "QAttention QGemm QLinearAdd QLinearConv QLinearMatMul"
)
_INTEGER = frozenset(_INTEGER_TEXT.split())
"""Operators that take integers themselves."""
_WEIGHTS = "{} weights"
"""Of a node that computes in float, as its file says it."""
_BLOCKS = frozenset({"MatMulNBits", "GatherBlockQuantized"})
"""Operators on integer weights in blocks, beside float activations."""


def map_precisions(model: ir.Model) -> Mapping[str, str]:
    """Return node -> precision, such as ``int8``, ``int4 weights``, ``float16`` or ``float32``.

    A node between dequantized activations and weights computes in integers where the runtime fuses
    the pairs around it; one whose weights alone were rounded computes in float. Constants, casts
    and the pairs themselves are left out; of an unknown type the precision is empty.
    """
    return {
        node.name: _determine_precision(node)
        for node in edit.walk_nodes(infer_copy(model)[0])
        if node.name
        and node.op_type not in ("Constant", "Cast", "QuantizeLinear", "DequantizeLinear")
    }


def find_precision(precisions: Mapping[str, str], name: str) -> str | None:
    """Return the precision of a node that a quantizer may have put others in the place of.

    They are called by its name and a suffix; None where there is neither it nor such.
    """
    if name in precisions:
        return precisions[name]
    variants = {precision for n, precision in precisions.items() if n.startswith(f"{name}_")}
    lower = sorted(precision for precision in variants if precision.startswith("int"))
    return lower[0] if name and lower else None


def _determine_precision(node: ir.Node) -> str:
    if node.op_type in _INTEGER:
        return "int8"
    if node.op_type in _BLOCKS:
        return _WEIGHTS.format(f"int{edit.read_attribute(node, 'bits', 4)}")
    rounded = [value for value in node.inputs if qdq.is_integer(value)]
    width = next((f"int{_count_bits(value)}" for value in rounded), "")
    if any(map(qdq.is_rounded, rounded)):
        return width
    return _WEIGHTS.format(width) if width else _find_float_type(node)


def _count_bits(value: ir.Value | None) -> int:
    """Return the width of the integers behind a DequantizeLinear; 8 where nothing says it."""
    node = qdq.find_runtime_producer(value, "DequantizeLinear")
    dtype = qdq.find_element_type(node.inputs[0]) if node is not None else None
    return 8 if dtype is None else int(dtype.itemsize * 8)


def _find_float_type(node: ir.Node) -> str:
    tensors = [edit.const_tensor(value) for value in node.inputs]
    types = [tensor.dtype for tensor in tensors if tensor is not None]
    values = [value for value in (*node.outputs, *node.inputs) if value is not None]
    types += [value.dtype for value in values if value.dtype is not None]
    floats = [dtype for dtype in types if dtype.is_floating_point()]
    return edit.dtype_name(floats[0]) if floats else ""


_DYNAMIC = ("MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")


@dataclass(frozen=True)
class Saturable:
    """A layer that multiplies U8 activations by constant S8 weights."""

    node: str
    op: str
    pairs: int  # pairs of weights along the inner dimension
    risky: int  # pairs whose sum of products leaves 16 bits for some activation


def list_saturable_layers(model: ir.Model) -> tuple[Saturable, ...]:
    """Return every such layer in the order of the graph, those without a risky pair too.

    QDQ, QOperator and dynamic forms are read. Weights of products are looked at as [K, N]; a
    product of two activations is left out, as its weights are not known.
    """
    layers = []
    for node in edit.walk_nodes(model):
        weight, unsigned = _read_operands(node)
        if weight is None or not unsigned or weight.dtype != np.int8 or weight.ndim < 2:
            continue
        # The [K, N] matrices that the node multiplies U8 activations by.
        if node.op_type in ("Conv", "QLinearConv"):
            groups = int(edit.read_attribute(node, "group", 1))
            if groups > 1 and weight.shape[1] == 1 and len(weight) == groups:
                continue
            matrices = [saturation.kernel_matrix(part) for part in np.split(weight, groups)]
        else:
            weight = weight.T if edit.read_attribute(node, "transB", 0) else weight
            matrices = list(weight.reshape(-1, *weight.shape[-2:]))
        risks = [saturation.at_risk(matrix) for matrix in matrices]
        pairs = sum(risk.size for risk in risks)
        risky = sum(int(np.count_nonzero(risk)) for risk in risks)
        if matrices:
            layers.append(Saturable(str(node.name), node.op_type, pairs, risky))
    return tuple(layers)


def _read_operands(node: ir.Node) -> tuple[NDArray[Any] | None, bool]:
    """Return a layer's constant integers and whether its activations are U8."""
    if not qdq.has_runtime_domain(node):
        return None, False
    if node.op_type in ("Conv", "MatMul", "Gemm"):
        wide = qdq.find_runtime_producer(qdq.find_input(node, 1), "DequantizeLinear")
        x = qdq.find_runtime_producer(qdq.find_input(node, 0), "DequantizeLinear")
        if wide is None or x is None:
            return None, False
        grid = qdq.read_grid(x)
        unsigned = grid is not None and grid.zero.dtype == np.uint8
        return edit.const_array(wide.inputs[0]), unsigned
    if node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm"):
        zero = edit.const_array(qdq.find_input(node, 2))
        array = edit.const_array(qdq.find_input(node, 3))
        return array, zero is None or zero.dtype == np.uint8
    if node.op_type in _DYNAMIC:
        rounding = qdq.find_runtime_producer(node.inputs[0], "QuantizeLinear")
        grid = qdq.read_grid(rounding) if rounding is not None else None
        unsigned = rounding is None or (grid is not None and grid.zero.dtype == np.uint8)
        return edit.const_array(node.inputs[1]), unsigned
    return None, False
