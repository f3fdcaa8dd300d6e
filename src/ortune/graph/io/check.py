"""The invariants that every step must keep; checked after each one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from ortune.core.errors import BadModel, gist
from ortune.core.facts import TensorSpec
from ortune.graph.io.write import light
from ortune.graph.ir import spec
from ortune.graph.ir.edit import Graph, bodies


@dataclass(frozen=True)
class ModelSignature:
    """What a caller of the model relies on.

    Attributes:
        inputs: Those that must be given.
        faults: What onnx's own checks already find wrong with the untouched model.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    faults: frozenset[str] = frozenset()


def signature(model: ir.Model) -> ModelSignature:
    """Describe the model that `check` compares against."""
    found = frozenset(kind for kind, _ in faults(model))
    return ModelSignature(spec.inputs(model), spec.outputs(model), found)


def retyped(before: ModelSignature, model: ir.Model) -> ModelSignature:
    """Return a signature with the types of a model that was meant to change them."""
    found = (spec.inputs(model), spec.outputs(model))
    inputs, outputs = (
        tuple(replace(old, dtype=new.dtype) for old, new in zip(olds, news, strict=True))
        for olds, news in zip((before.inputs, before.outputs), found, strict=True)
    )
    return replace(before, inputs=inputs, outputs=outputs)


def check(model: ir.Model, before: ModelSignature, step: str) -> None:
    """Refuse a model that a step has broken.

    Checked: names, types and ranks of inputs and outputs; that every value read is made before,
    in the graph itself or around it, under a name of its own; the operators' schemas; and that
    types follow from the inputs'. A kind of fault that the untouched model has too is let pass.

    Raises:
        BadModel: Something does not hold.
    """
    found = next(_changes(model, before), None) or next(iter(problems(model)), None)
    if found is None:
        found = next((text for kind, text in faults(model) if kind not in before.faults), None)
    if found is not None:
        raise BadModel(
            f"step {step} broke the model: {found}",
            fix="leave the step out of the recipe, and report it",
        )


def problems(model: ir.Model) -> list[str]:
    """Return what breaks ONNX's rules for graphs, in words."""
    found: list[str] = []
    tops: list[Graph] = [model.graph, *model.functions.values()]
    for graph in tops:
        _look(graph, set(), set(), found)
    return found


def _changes(model: ir.Model, before: ModelSignature) -> Iterator[str]:
    now = (spec.inputs(model), spec.outputs(model))
    for kind, old, new in zip(
        ("input", "output"), (before.inputs, before.outputs), now, strict=True
    ):
        if [one.name for one in old] != [two.name for two in new]:
            names = ", ".join(two.name for two in new)
            yield f"its {kind}s are now {names or 'none'}"
        for one, two in zip(old, new, strict=False):
            if one.dtype != two.dtype:
                yield f"{kind} '{one.name}' was {one.dtype or 'untyped'}, is {two.dtype}"
            if not _agree(one.shape, two.shape):
                yield f"{kind} '{one.name}' had shape {one.shape}, has {two.shape}"


def _agree(one: tuple[object, ...] | None, two: tuple[object, ...] | None) -> bool:
    if one is None or two is None:
        return True
    pairs = zip(one, two, strict=False)
    fixed = (a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return len(one) == len(two) and all(fixed)


def _look(graph: Graph, outer: set[ir.Value], names: set[str], found: list[str]) -> None:
    """Walk a graph in order; `outer` is what the graphs around it have made so far."""
    held = list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []
    known = dict.fromkeys((*graph.inputs, *held))
    seen = outer | set(known)
    for value in known:
        _take(value, names, found)
    for node in graph:
        label = f"{node.op_type} '{node.name}'"
        late = [value for value in node.inputs if value is not None and value not in seen]
        found += [f"{label} reads '{one.name}', which nothing has made before" for one in late]
        for body in bodies(node):
            _look(body, seen, set(names), found)
        for value in node.outputs:
            _take(value, names, found)
        seen.update(node.outputs)
    missing = [value for value in graph.outputs if value not in seen]
    found += [f"nothing makes the output '{value.name}'" for value in missing]


def _take(value: ir.Value, names: set[str], found: list[str]) -> None:
    if value.name and value.name in names:
        found.append(f"two values are called '{value.name}'")
    names.add(value.name or "")


def faults(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of what onnx's checker and type inference find."""
    proto = light(model)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        yield "rules", gist(error)
    declared = {v.name: v.type for v in (*proto.graph.value_info, *proto.graph.output)}
    del proto.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        yield "types", gist(error)
        return
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        if value.name in declared and (text := _contradiction(declared[value.name], value.type)):
            yield "declared", f"'{value.name}' {text}"


def _contradiction(old: onnx.TypeProto, new: onnx.TypeProto) -> str | None:
    one, two = old.tensor_type, new.tensor_type
    if one.elem_type and two.elem_type and one.elem_type != two.elem_type:
        names = [onnx.TensorProto.DataType.Name(t.elem_type).lower() for t in (one, two)]
        return f"is declared {names[0]} and computed as {names[1]}"
    if not one.HasField("shape") or not two.HasField("shape"):
        return None
    shapes = [
        tuple(d.dim_value if d.HasField("dim_value") else None for d in t.shape.dim)
        for t in (one, two)
    ]
    return None if _agree(*shapes) else f"is declared {shapes[0]} and computed as {shapes[1]}"
