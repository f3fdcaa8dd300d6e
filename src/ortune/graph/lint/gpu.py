"""What TensorRT's importer refuses, and what keeps a graph from being captured by CUDA.

Read off the graph, without a device. What TensorRT takes is in onnx-tensorrt's
``QuantDequantLinearHelper`` (onnxOpImporters.cpp): int8 with zero point 0 and positive scales, and
no 32-bit integers, no 16 bits, no operators that are integer themselves. What CUDA graphs ask is
in onnxruntime's ``InferenceSession::Initialize`` (microsoft/onnxruntime#16491, #15005): no control
flow, no copies between the CPU and the device, and for TensorRT every node in one engine.
"""

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortune.graph.ir.edit import const_array, list_bodies, read_attribute, walk_nodes
from ortune.graph.ir.match import qualify_operator
from ortune.graph.ir.qdq import MICROSOFT
from ortune.graph.lint.rules import Finding, make_finding

PAIRS = ("QuantizeLinear", "DequantizeLinear")

_INTEGER = re.compile(r"(com\.microsoft::)?(QLinear\w+|\w+Integer(ToFloat)?|QAttention|QGemm)")
"""Operators that multiply integers themselves."""

_DYNAMIC = (
    "DynamicQuantizeLinear",
    "com.microsoft::DynamicQuantizeLSTM",
    "com.microsoft::DynamicQuantizeMatMul",
)
"""Operators that find the range of an activation in the run."""

_TAKEN = frozenset({"INT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"})
"""Types of integers and small floats that its pairs know."""

COUNTED = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose output is as large as its values say: the CPU waits for the device to know."""

SHAPES = ("Shape", "Size")
"""Operators whose answer, and what is computed of it, onnxruntime keeps on the CPU."""

_AGAIN = "quantize the float model: `ortune convert M OUT --precision int8 --target tensorrt`"


def lint_tensorrt(model: ir.Model) -> tuple[Finding, ...]:
    """Return what TensorRT refuses of a quantized model; nothing of a float one."""
    return tuple(finding for finding in _list_refusals(model) if finding is not None)


def _list_refusals(model: ir.Model) -> Iterator[Finding | None]:
    nodes = list(walk_nodes(model))
    pairs = [node for node in nodes if node.op_type in PAIRS]
    plain = [node for node in pairs if not node.domain]
    yield _make_error(
        "tensorrt-dynamic",
        "{n} nodes that compute ranges in the run",
        (node.name for node in nodes if qualify_operator(node) in _DYNAMIC),
        "TensorRT has no such operator, and CUDA no kernel for it",
    )
    yield _make_error(
        "tensorrt-operators",
        "{n} nodes with integer operators",
        (node.name for node in nodes if _INTEGER.fullmatch(qualify_operator(node))),
        "TensorRT reads only Q/DQ pairs around float operators",
    )
    yield _make_error(
        "tensorrt-domain",
        "{n} pairs of com.microsoft's QuantizeLinear and DequantizeLinear",
        (node.name for node in pairs if node.domain == MICROSOFT),
        "TensorRT reads only ONNX's own Q/DQ operators",
    )
    yield _make_error(
        "tensorrt-zero-point",
        "{n} pairs of Q/DQ with a zero point other than 0",
        (node.name for node in plain if _has_zero_point(node)),
        "TensorRT's integers are symmetric",
    )
    yield _make_error(
        "tensorrt-type",
        "{n} pairs of Q/DQ of a type that TensorRT does not support",
        (f"{node.name} ({kind})" for node in plain if (kind := _find_type(node)) not in _TAKEN),
        "the importer refuses the file; a bias belongs there in float",
    )
    yield _make_error(
        "tensorrt-scale",
        "{n} pairs of Q/DQ with a scale that is not positive",
        (node.name for node in plain if not _has_positive_scale(node)),
        "the importer refuses the file",
    )
    yield _make_error(
        "tensorrt-channels",
        "{n} activations with a scale per channel",
        (node.name for node in plain if _by_channel(node)),
        "TensorRT takes per-channel scales for weights only",
    )


def _make_error(rule: str, summary: str, places: Iterator[object], cost: str) -> Finding | None:
    return make_finding(rule, "error", summary, places, cost, _AGAIN)


def _has_zero_point(node: ir.Node) -> bool:
    zero = const_array(node.inputs[2]) if len(node.inputs) > 2 else None
    return zero is not None and bool(np.any(zero.astype(np.float32)))


def _find_type(node: ir.Node) -> str:
    """Return the small type; without a zero point that is uint8 unless an attribute names it."""
    if node.op_type == "DequantizeLinear" and node.inputs[0] is not None:
        dtype = node.inputs[0].dtype
    else:
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        dtype = ir.DataType(read_attribute(node, "output_dtype", 0) or int(ir.DataType.UINT8))
        dtype = dtype if zero is None else zero.dtype
    return "INT8" if dtype is None else dtype.name


def _has_positive_scale(node: ir.Node) -> bool:
    scale = const_array(node.inputs[1])
    return scale is None or bool(np.all(scale.astype(np.float32) > 0))


def _by_channel(node: ir.Node) -> bool:
    scale = const_array(node.inputs[1])
    if scale is None or scale.size == 1:
        return False
    value: ir.Value | None = node.inputs[0]
    while value is not None and value.producer() is not None:
        maker = value.producer()
        assert maker is not None
        if maker.op_type not in ("QuantizeLinear", "Constant", "Identity"):
            return True
        value = maker.inputs[0] if maker.inputs else None
    return value is not None and value.is_graph_input() and const_array(value) is None


def lint_cuda_graph(model: ir.Model) -> tuple[Finding, ...]:
    """Return what keeps a model out of CUDA graphs, and what stays on the CPU beside them."""
    return tuple(finding for finding in _list_obstacles(model) if finding is not None)


def _list_obstacles(model: ir.Model) -> Iterator[Finding | None]:
    nodes = list(walk_nodes(model))
    yield make_finding(
        "cuda-graph-control-flow",
        "warning",
        "{n} nodes with bodies",
        (f"{node.op_type} {node.name}" for node in nodes if any(True for _ in list_bodies(node))),
        "onnxruntime refuses a CUDA graph: what runs would depend on values",
        "apply simplify, which unrolls and folds what is constant; else leave cuda_graph out",
    )
    yield make_finding(
        "cuda-graph-counted",
        "warning",
        "{n} nodes whose values say how large their output is",
        (f"{node.op_type} {node.name}" for node in nodes if node.op_type in COUNTED),
        "the CPU waits for the device in every run, which a CUDA graph cannot hold",
        "cut the model in front of them: `ortune extract`; or leave cuda_graph out",
    )
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    free = [v for v in inputs if v.shape is None or not v.shape.is_static()]
    yield make_finding(
        "cuda-graph-shapes",
        "note",
        "{n} inputs without a fixed shape",
        (value.name for value in free),
        "a CUDA graph has one shape: it is captured again for another",
        "apply fix-dims",
    )
    yield make_finding(
        "cuda-graph-cpu",
        "note",
        "{n} nodes ask for a shape",
        (f"{node.op_type} {node.name}" for node in nodes if node.op_type in SHAPES),
        "shapes, and what is computed from them, stay on the CPU: a replay repeats the first "
        "answer, and where a value is copied back no CUDA graph is made",
        "apply fix-dims and simplify: they become constants",
    )
