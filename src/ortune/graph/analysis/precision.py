"""In which precision each node of a file computes: read off its inputs, weights and outputs."""

from collections.abc import Mapping

import onnx_ir as ir

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
