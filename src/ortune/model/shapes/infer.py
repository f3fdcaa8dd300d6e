"""Shape inference as a ladder; each rung fills the gaps that the ones before have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ortune.core.errors import BadSettings
from ortune.model.graph.edit import every_graph, every_node, inline
from ortune.model.graph.spec import dims, shape_of
from ortune.model.io.write import light
from ortune.model.shapes.known_values import Known
from ortune.model.shapes.node import MADE_UP, infer_graph, merge

Runtime: TypeAlias = Callable[[list[str]], Mapping[str, tuple[str, Sequence[int]]]]
"""Runs the model on a real input: names of values in, NumPy dtype name and shape of each out."""


def infer(model: ir.Model, *, runtime: Runtime | None = None) -> str:
    """Fill in the types and shapes of values in place and return the rung that did it.

    ``file``: everything was declared. ``symbolic``: node by node, with named dimensions carried
    through shape arithmetic. ``onnx``: onnx's inference over the whole model, Loop and Scan
    included. ``runtime``: seen in a run. The answer is the last rung that helped; ``none`` when
    gaps are left and no rung could fill one. What the file declares is never overwritten; ask
    `unknown` what is still missing.

    Args:
        runtime: Where the sizes of a run are filled in, only ranks are when an input is dynamic.
    """
    answer, gaps = "file", unknown(model)
    for name, rung in (("symbolic", _symbolic), ("onnx", _onnx)):
        if not gaps:
            return answer
        rung(model)
        gaps, before = unknown(model), gaps
        answer = name if len(gaps) < len(before) else answer
    if gaps and runtime is not None:
        _run(model, gaps, runtime)
        answer = "runtime" if len(unknown(model)) < len(gaps) else answer
    return "none" if answer == "file" and gaps else answer


def unknown(model: ir.Model) -> list[str]:
    """Return the names of the main graph's values whose type or rank is not known."""
    made = (value for node in model.graph for value in node.outputs if value.name)
    return [
        str(value.name)
        for value in (*model.graph.inputs, *made)
        if value.type is None or (isinstance(value.type, ir.TensorType) and value.shape is None)
    ]


def _symbolic(model: ir.Model) -> None:
    infer_graph(model.graph, model.opset_imports, Known())


def _onnx(model: ir.Model) -> None:
    try:
        proto = onnx.shape_inference.infer_shapes(light(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return
    _adopt(model.graph, proto.graph)


def _adopt(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Take over what was inferred: names tie values together, the order of nodes their bodies."""
    found = {v.name: v.type for v in (*proto.value_info, *proto.output, *proto.input)}
    for node, other in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            kind = found.get(value.name or "")
            if kind is None:
                continue
            if value.type is None:
                value.type = ir.serde.deserialize_type_proto_for_type(kind)
            shape = dims(ir.serde.deserialize_type_proto_for_shape(kind))
            if shape is not None:
                # onnx makes up names such as unk__0, which mean nothing
                merge(value, [None if str(d).startswith(MADE_UP) else d for d in shape])
        for attribute in other.attribute:
            if attribute.HasField("g"):
                _adopt(node.attributes[attribute.name].as_graph(), attribute.g)


def _run(model: ir.Model, names: list[str], runtime: Runtime) -> None:
    shapes = [shape_of(value) for value in model.graph.inputs if not value.is_initializer()]
    fixed = all(s is not None and all(isinstance(d, int) for d in s) for s in shapes)
    found = runtime(names)
    for graph in every_graph(model):
        for value in (value for node in graph for value in node.outputs):
            if not value.name or value.name not in found:
                continue
            kind, shape = found[value.name]
            if value.type is None:
                value.type = ir.TensorType(_dtype(kind))
            merge(value, list(shape) if fixed else [None] * len(shape))


def _dtype(name: str) -> ir.DataType:
    if name in ("str", "object"):
        return ir.DataType.STRING
    return next(d for d in ir.DataType if d != ir.DataType.UNDEFINED and d.numpy().name == name)


def shaped(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[ir.Model, str]:
    """Return a copy without local functions, with all shapes that the ladder finds, and its rung.

    Args:
        model: Left as it is; the copy shares its weights.
        shapes: Input -> shape to take it at, in place of the dimensions that it is declared with.

    Raises:
        BadSettings: There is no such input, or it has another rank or fixed size.
    """
    copy = model.clone()
    inline(copy)
    if shapes:
        inputs = {str(value.name): value for value in copy.graph.inputs}
        for name, wanted in shapes.items():
            _demand(name, wanted, inputs)
        for node in every_node(copy):
            for value in node.outputs:
                value.shape = None
        for name, wanted in shapes.items():
            inputs[name].shape = ir.Shape(wanted)
    return copy, infer(copy)


def _demand(name: str, wanted: tuple[int, ...], inputs: Mapping[str, ir.Value]) -> None:
    if name not in inputs:
        raise BadSettings(f"the model has no input '{name}'", fix=f"use {', '.join(inputs)}")
    declared = inputs[name].shape
    if declared is None:
        return
    pairs = zip(declared, wanted, strict=False)
    clash = any(isinstance(old, int) and old != new for old, new in pairs)
    if clash or len(declared) != len(wanted):
        sides = "x".join(str(dim) if isinstance(dim, int) else "?" for dim in declared)
        raise BadSettings(
            f"input '{name}' does not take the shape {'x'.join(map(str, wanted))}",
            fix=f"it is declared {sides}",
        )
