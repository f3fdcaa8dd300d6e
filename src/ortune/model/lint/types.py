"""Rules about types: what is wider, narrower or odder than it needs to be."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortune.core.wording import count
from ortune.model.graph.edit import every_node
from ortune.model.graph.values import named_weights
from ortune.model.lint.finding import Finding, finding

_LARGE = 1 << 20
"""Bytes from which integers of 64 bits are worth a word."""


def findings(model: ir.Model, shaped: ir.Model) -> Iterator[Finding | None]:
    """Yield what is odd about types."""
    weights = list(named_weights(model))
    nodes = list(every_node(shaped))
    makers = [n for n in nodes if n.op_type not in ("Cast", "Constant") and _double(n)]
    double = [name for name, tensor in weights if tensor.dtype == ir.DataType.DOUBLE]
    yield finding(
        "double",
        "warning",
        f"float64 in {count(len(makers), 'node')} and {count(len(double), 'weight')}",
        [*(f"{node.op_type} {node.name}" for node in makers), *double],
        "half the speed and twice the memory of float32, where there is a kernel at all",
        "export in float32",
    )
    wide = [(n, t) for n, t in weights if t.dtype == ir.DataType.INT64 and t.nbytes >= _LARGE]
    yield finding(
        "int64-weights",
        "note",
        "{n} weights of int64 above 1 MB",
        (name for name, _ in wide),
        f"{sum(tensor.nbytes for _, tensor in wide):,} bytes; most values fit int32",
        "export with int32 where the operator takes it",
    )
    half = [t.nbytes for _, t in weights if t.dtype == ir.DataType.FLOAT16]
    if half and 2 * sum(half) > sum(t.nbytes for _, t in weights):
        yield finding(
            "half-on-cpu",
            "note",
            "weights are float16",
            ["weights"],
            "onnxruntime's CPU provider computes float32 between casts of its own",
            'compare: `ortune bench M --on "cpu,openvino"`',
        )
    values = dict.fromkeys(v for node in nodes for v in (*node.inputs, *node.outputs) if v)
    odd = (ir.SequenceType, ir.OptionalType)
    yield finding(
        "sequences",
        "note",
        "{n} values of sequence or optional type",
        (value.name for value in values if isinstance(value.type, odd)),
        "few providers take them; they are left in float",
        "export with plain tensors",
    )
    tensors = [v for v in shaped.graph.inputs if isinstance(v.type, ir.TensorType)]
    yield finding(
        "unknown-rank",
        "warning",
        "{n} inputs without a declared rank",
        (value.name for value in tensors if value.shape is None),
        "no shape behind them is known before a run",
        "export with declared dimensions, dynamic ones by name",
    )


def _double(node: ir.Node) -> bool:
    return any(value.dtype == ir.DataType.DOUBLE for value in node.outputs if value.type)
