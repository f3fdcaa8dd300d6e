"""Layers of a quantized model that can saturate on x86 CPUs without VNNI."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.hardware import saturation
from ortune.graph.ir import edit, qdq

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
