"""Writes what a runtime misreads around pairs otherwise: what a Concat joins, and lengths."""

import math

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit
from ortune.quantizers.common.qdq import runtime_rules
from ortune.quantizers.common.qdq.dequantize import bound_joined


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
