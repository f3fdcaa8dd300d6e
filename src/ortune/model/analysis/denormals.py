"""How many weights are denormal: floats so small that many CPUs compute slowly with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph import edit

_CHUNK = 1 << 20
_LIMIT = 1 << 27
"""Elements that are looked at: a second of work, however large the model is."""
_KINDS: dict[np.dtype[Any], tuple[type[np.unsignedinteger], int]] = {
    np.dtype(np.float32): (np.uint32, 8),
    np.dtype(np.float16): (np.uint16, 5),
}


def denormals(model: ir.Model) -> float:
    """Return the share of float32 and float16 weights that are denormal, 0 without any.

    Weights are read in chunks where they are stored. Of models with more than 134 million
    weights an even part of each chunk is looked at.
    """
    tensors = [t for t in _floats(model) if t.size]
    total = sum(tensor.size for tensor in tensors)
    step = -(-total // _LIMIT) or 1
    seen = found = 0
    for tensor in tensors:
        flat = np.asarray(tensor.numpy()).reshape(-1)
        for start in range(0, flat.size, _CHUNK * step):
            part = flat[start : start + _CHUNK]
            seen += part.size
            found += int(np.count_nonzero(denormal(part)))
    return found / seen if seen else 0.0


def denormal(array: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which elements are denormal: exponent 0, and not 0 themselves (IEEE 754)."""
    whole, exponent = _KINDS[array.dtype]
    bits: NDArray[np.unsignedinteger] = np.ascontiguousarray(array).view(whole)
    smallest = 1 << (8 * array.dtype.itemsize - exponent)
    return np.asarray((bits << 1) - 1 < smallest - 1)


def _floats(model: ir.Model) -> list[ir.TensorProtocol]:
    found = []
    for graph in edit.every_graph(model):
        if isinstance(graph, ir.Graph):
            found += [v.const_value for v in graph.initializers.values() if v.const_value]
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                tensor = edit.const_tensor(node.outputs[0])
                found += [tensor] if tensor is not None else []
    wanted = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    return [tensor for tensor in found if tensor.dtype in wanted]
