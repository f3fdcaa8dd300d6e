"""Which constants a layer multiplies or looks up."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.match import label
from ortune.quantization.computed_weights import PUTS_TOGETHER

READS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "MatMul": (1,),
    "Gemm": (1,),
    "Gather": (0,),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
    "com.microsoft::Attention": (1,),
    "com.microsoft::EmbedLayerNormalization": (2, 3, 4),
    "com.microsoft::FusedConv": (1,),
    "com.microsoft::FusedGemm": (1,),
    "com.microsoft::FusedMatMul": (1,),
    "com.microsoft::NhwcFusedConv": (1,),
}
"""Operator of a layer -> inputs that are its weights."""
_FLOATS = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)


def weights(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the constant float matrices behind a layer's weights; none where it is no layer.

    A weight that the graph turns over or puts together from constants counts by its parts: a table
    that is looked up and, transposed, multiplied too is one weight.
    """
    op = label(node)
    if op not in READS or (op == "Gather" and edit.attribute(node, "axis", 0)):
        return ()
    found: list[ir.Value] = []
    for place in READS[op]:
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            continue
        parts = list(_parts(value))
        if None in parts:
            return ()
        found += [part for part in parts if part is not None and _matrix(part)]
    return tuple(dict.fromkeys(found))


def _matrix(value: ir.Value) -> bool:
    tensor = edit.const_tensor(value)
    if tensor is None or tensor.dtype not in _FLOATS:
        return False
    return len(tensor.shape) >= 2 and tensor.size > 0


def _parts(value: ir.Value) -> Iterator[ir.Value | None]:
    """Yield the constants that a value is put together from; None where it depends on more."""
    node = value.producer()
    if edit.const_tensor(value) is not None:
        while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
            value = node.inputs[0]
            node = value.producer()
        yield value
    elif node is None or node.domain or node.op_type not in PUTS_TOGETHER:
        yield None
    else:
        for part in node.inputs:
            if part is not None:
                yield from _parts(part)
