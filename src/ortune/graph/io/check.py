"""The invariants that every step must keep; checked after each one."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from ortune.core.errors import BadModel, summarize_error
from ortune.core.facts import TensorSpec
from ortune.graph.io import wellformed
from ortune.graph.io.write import serialize_without_weights
from ortune.graph.ir import edit
from ortune.graph.ir.edit import Graph, list_bodies


@dataclass(frozen=True)
class ModelSignature:
    """What a caller of the model relies on."""

    inputs: tuple[TensorSpec, ...]  # those that must be given
    outputs: tuple[TensorSpec, ...]
    # What onnx's own checks already find wrong with the untouched model.
    faults: frozenset[str] = frozenset()


def describe_signature(model: ir.Model) -> ModelSignature:
    """Describe the model that `check_model` compares against."""
    fault_kinds = frozenset(kind for kind, _ in find_faults(model))
    return ModelSignature(edit.list_inputs(model), edit.list_outputs(model), fault_kinds)


def retype_signature(before: ModelSignature, model: ir.Model) -> ModelSignature:
    """Return a signature with the types of a model that was meant to change them."""
    specs = (edit.list_inputs(model), edit.list_outputs(model))
    inputs, outputs = (
        tuple(replace(old, dtype=new.dtype) for old, new in zip(olds, news, strict=True))
        for olds, news in zip((before.inputs, before.outputs), specs, strict=True)
    )
    return replace(before, inputs=inputs, outputs=outputs)


def check_model(model: ir.Model, before: ModelSignature, step: str) -> None:
    """Refuse a model that a step has broken.

    Checked: names, types and ranks of inputs and outputs; that every value read is made before,
    in the graph itself or around it, under a name that is free; the operators' schemas; and that
    types follow from the inputs'. A kind of fault that the untouched model has too is let pass.

    Raises:
        BadModel: Something does not hold.
    """
    fault = next(_list_changes(model, before), None) or next(iter(list_problems(model)), None)
    if fault is None:
        fault = next((t for kind, t in find_faults(model) if kind not in before.faults), None)
    if fault is not None:
        raise BadModel(
            f"step {step} broke the model: {fault}",
            fix="leave the step out of the recipe, and report it",
        )


def list_problems(model: ir.Model) -> list[str]:
    """Return what breaks ONNX's rules for graphs, in words."""
    problems: list[str] = []
    tops: list[Graph] = [model.graph, *model.functions.values()]
    for graph in tops:
        _check_graph(graph, set(), set(), problems)
    return problems


def _list_changes(model: ir.Model, before: ModelSignature) -> Iterator[str]:
    now = (edit.list_inputs(model), edit.list_outputs(model))
    for kind, old, new in zip(
        ("input", "output"), (before.inputs, before.outputs), now, strict=True
    ):
        if [expected.name for expected in old] != [actual.name for actual in new]:
            names = ", ".join(actual.name for actual in new)
            yield f"its {kind}s are now {names or 'none'}"
        for expected, actual in zip(old, new, strict=False):
            if expected.dtype != actual.dtype:
                yield (
                    f"{kind} '{expected.name}' was {expected.dtype or 'untyped'}, is "
                    f"{actual.dtype}"
                )
            if not _is_compatible(expected.shape, actual.shape):
                yield f"{kind} '{expected.name}' had shape {expected.shape}, has {actual.shape}"


def _is_compatible(first: tuple[object, ...] | None, second: tuple[object, ...] | None) -> bool:
    if first is None or second is None:
        return True
    pairs = zip(first, second, strict=False)
    fixed = (a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return len(first) == len(second) and all(fixed)


def _check_graph(graph: Graph, outer: set[ir.Value], names: set[str], problems: list[str]) -> None:
    """Walk a graph in order; `outer` is what the graphs around it have made so far."""
    initializers = list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []
    sources = dict.fromkeys((*graph.inputs, *initializers))
    seen = outer | set(sources)
    # What a body is given or holds may be called like a value around it, as ONNX's checker and
    # the runtimes have it; what a node makes may not.
    own_names: set[str] = set()
    for value in sources:
        _claim_name(value, own_names, problems)
    names |= own_names
    for node in graph:
        label = f"{node.op_type} '{node.name}'"
        late = [value for value in node.inputs if value is not None and value not in seen]
        problems += [f"{label} reads '{v.name}', which nothing has made before" for v in late]
        for body in list_bodies(node):
            _check_graph(body, seen, set(names), problems)
        for value in node.outputs:
            _claim_name(value, names, problems)
        seen.update(node.outputs)
    missing = [value for value in graph.outputs if value not in seen]
    problems += [f"nothing makes the output '{value.name}'" for value in missing]


def _claim_name(value: ir.Value, names: set[str], problems: list[str]) -> None:
    if value.name and value.name in names:
        problems.append(f"two values are called '{value.name}'")
    names.add(value.name or "")


def find_faults(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of what onnx's checker and type inference find.

    Operators that onnxruntime adds to the default domain are looked at as those of its own.
    """
    proto = serialize_without_weights(model)
    for nodes, imports in (
        (proto.graph.node, proto.opset_import),
        *((function.node, function.opset_import) for function in proto.functions),
    ):
        opset = next((entry.version for entry in imports if not entry.domain), 1)
        for node in wellformed.walk_node_protos(nodes):
            if wellformed.is_runtime_operator(node.op_type, node.domain, opset):
                node.domain = "com.microsoft"
        if all(entry.domain != "com.microsoft" for entry in imports):
            imports.add(domain="com.microsoft", version=1)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        yield "rules", summarize_error(error)
    declared = {v.name: v.type for v in proto.graph.value_info}
    del proto.graph.value_info[:]
    for output in proto.graph.output:  # what inference sees declared it keeps, though it be wrong
        declared[output.name] = copy.deepcopy(output.type)
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        yield "types", summarize_error(error)
        return
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        if value.name in declared and (
            text := _find_contradiction(declared[value.name], value.type)
        ):
            yield "declared", f"'{value.name}' {text}"


def _find_contradiction(old: onnx.TypeProto, new: onnx.TypeProto) -> str | None:
    old_type, new_type = old.tensor_type, new.tensor_type
    if old_type.elem_type and new_type.elem_type and old_type.elem_type != new_type.elem_type:
        names = [onnx.TensorProto.DataType.Name(t.elem_type).lower() for t in (old_type, new_type)]
        return f"is declared {names[0]} and computed as {names[1]}"
    if not old_type.HasField("shape") or not new_type.HasField("shape"):
        return None
    shapes = [
        tuple(d.dim_value if d.HasField("dim_value") else None for d in t.shape.dim)
        for t in (old_type, new_type)
    ]
    return (
        None if _is_compatible(*shapes) else f"is declared {shapes[0]} and computed as {shapes[1]}"
    )
