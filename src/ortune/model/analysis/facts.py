"""Read a model's facts in one pass, without reading its weights."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.model.analysis.flops import flops
from ortune.model.graph import edit, spec
from ortune.model.shapes.infer import infer, unknown


def facts(model: ir.Model, known: tuple[ir.Model, str] | None = None) -> Facts:
    """Describe a model; it is left as it is.

    Missing shapes are inferred on a copy, or taken from `known`, what `shaped` returned for it.
    Weights are initializers and Constant nodes, counted once where they are stored, as they are
    stored (4-bit ones as half a byte).
    """
    nodes = list(model.graph.all_nodes())
    weights = _weights(model)
    precisions: Counter[str] = Counter()
    for tensor in weights:
        precisions[spec.dtype_name(tensor.dtype)] += tensor.nbytes
    inputs = spec.inputs(model)
    dynamic = [d for one in inputs for d in one.shape or () if isinstance(d, str)]
    shaped, rung = known or _shaped(model)
    return Facts(
        ops=dict(Counter(_label(node) for node in nodes).most_common()),
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
        shapes_from=rung,
        metadata=dict(model.metadata_props),
    )


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all weights as they are stored; none is read."""
    return sum(tensor.nbytes for tensor in _weights(model))


def _shaped(model: ir.Model) -> tuple[ir.Model, str]:
    """Return the model with shapes, functions inlined: a copy where anything is missing."""
    if not model.functions and not unknown(model):
        return model, "file"
    copy = model.clone()
    edit.inline(copy)
    return copy, infer(copy)


def _label(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _weights(model: ir.Model) -> list[ir.TensorProtocol]:
    found = []
    for graph in edit.every_graph(model):
        if isinstance(graph, ir.Graph):
            found += [v.const_value for v in graph.initializers.values() if v.const_value]
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                tensor = edit.const_tensor(node.outputs[0])
                found += [tensor] if tensor is not None else []
    return found
