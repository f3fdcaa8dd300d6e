"""Read a model's facts in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.model.analysis.flops import flops
from ortune.model.analysis.lookups import table_bytes, table_rows
from ortune.model.analysis.weight_values import WeightValues, denormal_share, weight_values
from ortune.model.graph import edit, spec
from ortune.model.graph.match import label
from ortune.model.graph.values import named_weights
from ortune.model.shapes.infer import infer, unknown

_LIMIT = 1 << 27
"""Weights that are read: a second of work, however large the model is."""


def facts(
    model: ir.Model,
    known: tuple[ir.Model, str] | None = None,
    *,
    values: Sequence[WeightValues] | None = None,
    read: bool = False,
) -> Facts:
    """Describe a model; it is left as it is.

    Missing shapes are inferred on a copy. Weights are initializers and Constant nodes, counted
    once where they are stored, as they are stored (4-bit ones as half a byte).

    Args:
        model: Its weights are read only where `read` says so.
        known: What `shaped` returned for it.
        values: Of its weights, for the share of denormals.
        read: Count that share; of more than 134 million weights an even part is looked at.
    """
    nodes = list(model.graph.all_nodes())
    weights = [tensor for _, tensor in named_weights(model)]
    precisions: Counter[str] = Counter()
    for tensor in weights:
        precisions[spec.dtype_name(tensor.dtype)] += tensor.nbytes
    rows = table_rows(model)
    inputs = tuple(replace(one, rows=rows.get(one.name)) for one in spec.inputs(model))
    dynamic = [d for one in inputs for d in one.shape or () if isinstance(d, str)]
    shaped, rung = known or _shaped(model)
    if read and values is None:
        values = list(weight_values(model, _LIMIT))
    return Facts(
        ops=dict(Counter(label(node) for node in nodes).most_common()),
        nodes=len(nodes),
        parameters=sum(tensor.size for tensor in weights),
        weight_bytes=precisions.total(),
        precisions=dict(precisions.most_common()),
        opset=model.opset_imports.get("", 0),
        ir_version=model.ir_version,
        inputs=inputs,
        outputs=spec.outputs(model),
        dynamic=tuple(dict.fromkeys(dynamic)),
        subgraphs=sum(1 for _ in model.graph.subgraphs()),
        functions=len(model.functions),
        flops=flops(shaped),
        denormals=None if values is None else denormal_share(values),
        shapes_from=rung,
        metadata=dict(model.metadata_props),
        table_bytes=table_bytes(model),
    )


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all weights as they are stored; none is read."""
    return sum(tensor.nbytes for _, tensor in named_weights(model))


def _shaped(model: ir.Model) -> tuple[ir.Model, str]:
    """Return the model with shapes, functions inlined: a copy where anything is missing."""
    if not model.functions and not unknown(model):
        return model, "file"
    copy = model.clone()
    edit.inline(copy)
    return copy, infer(copy)
