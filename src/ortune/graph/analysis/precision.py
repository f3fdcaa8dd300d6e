"""In which precision each node of a file computes: read off its inputs, weights and outputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortune.graph.ir import edit, qdq, spec
from ortune.graph.shapes.infer import shaped

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


def precisions(model: ir.Model) -> Mapping[str, str]:
    """Return node -> precision, such as ``int8``, ``int4 weights``, ``float16`` or ``float32``.

    A node between dequantized activations and weights computes in integers where the runtime fuses
    the pairs around it; one whose weights alone were rounded computes in float. Constants, casts
    and the pairs themselves are left out; of an unknown type the precision is empty.
    """
    return {
        node.name: _precision(node)
        for node in edit.every_node(shaped(model)[0])
        if node.name
        and node.op_type not in ("Constant", "Cast", "QuantizeLinear", "DequantizeLinear")
    }


def named(found: Mapping[str, str], name: str) -> str | None:
    """Return the precision of a node that a quantizer may have put others in the place of.

    They are called by its name and a suffix; None where there is neither it nor such.
    """
    if name in found:
        return found[name]
    made = {held for other, held in found.items() if other.startswith(f"{name}_")}
    lower = sorted(held for held in made if held.startswith("int"))
    return lower[0] if name and lower else None


def _precision(node: ir.Node) -> str:
    if node.op_type in _INTEGER:
        return "int8"
    if node.op_type in _BLOCKS:
        return _WEIGHTS.format(f"int{edit.attribute(node, 'bits', 4)}")
    rounded = [value for value in node.inputs if qdq.is_integer(value)]
    width = next((f"int{_bits(value)}" for value in rounded), "")
    if any(map(qdq.is_rounded, rounded)):
        return width
    return _WEIGHTS.format(width) if width else _float(node)


def _bits(value: ir.Value | None) -> int:
    """Return the width of the integers behind a DequantizeLinear; 8 where nothing says it."""
    node = qdq.maker(value, "DequantizeLinear")
    held = node.inputs[0] if node is not None else None
    tensor = edit.const_tensor(held)
    dtype = tensor.dtype if tensor is not None else held.dtype if held is not None else None
    return 8 if dtype is None else int(dtype.itemsize * 8)


def _float(node: ir.Node) -> str:
    held = [edit.const_tensor(value) for value in node.inputs]
    types = [tensor.dtype for tensor in held if tensor is not None]
    values = [value for value in (*node.outputs, *node.inputs) if value is not None]
    types += [value.dtype for value in values if value.dtype is not None]
    floats = [one for one in types if one.is_floating_point()]
    return spec.dtype_name(floats[0]) if floats else ""
