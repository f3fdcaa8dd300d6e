"""Which layers that a file gives integers its runtime computes in integers."""

from collections import Counter

import onnx_ir as ir

from ortune.core.session import Executed, IntegerUse, Recorded
from ortune.graph.ir import edit, qdq
from ortune.graph.mapping.nodes import ADDED, Lineage, trace_lineage

_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_KERNELS = ("conv", "matmul", "gemm", "fullyconnected")
"""Parts of the names of kernels that compute layers, in lower case."""
_BESIDE = {
    "Subtract",
    *(op for op, kind in ADDED.items() if kind in ("cast", "quantize", "reorder")),
}
"""Kernels that only change how numbers are stored."""
_SEEN_NS = 1000
"""What takes less in a run is left out."""


def count_integer_layers(
    model: ir.Model, recorded: Recorded, traced: Lineage | None = None
) -> IntegerUse | None:
    """Compare the layers of a Q/DQ file with the kernels that ran; None of a file without any.

    A layer was given integers where its activation and its weight both come out of a
    DequantizeLinear. It ran in float where the kernel that stands for it reads float.

    Args:
        model: As the runtime loaded it; names are unique and functions inlined.
        traced: Which source nodes each kernel stands for; found here if not given.
    """
    layers = [n for n in edit.walk_nodes(model) if n.op_type in _LAYERS and not n.domain]
    layer_names = {str(n.name) for n in layers if all(map(qdq.is_integer, n.inputs[:2]))}
    if not layer_names:
        return None
    sources = (traced or trace_lineage(model, recorded)).sources
    in_float: dict[str, float] = {}
    beside: Counter[str] = Counter()
    for kernel, nodes in zip(recorded.nodes, sources, strict=True):
        if kernel.op_type in _BESIDE:
            beside[kernel.op_type] += round(kernel.spent_ns)
        elif _reads_float(kernel):
            for name in layer_names.intersection(nodes):
                in_float[name] = in_float.get(name, 0.0) + kernel.spent_ns
    return IntegerUse(
        len(layer_names), in_float, {op: ns for op, ns in beside.most_common() if ns >= _SEEN_NS}
    )


def _reads_float(kernel: Executed) -> bool:
    """Say whether a layer's kernel takes a float activation; of no other kernel it is said."""
    named = any(part in kernel.op_type.lower() for part in _KERNELS)
    return named and bool(kernel.inputs) and "int8" not in kernel.inputs[0].dtype
