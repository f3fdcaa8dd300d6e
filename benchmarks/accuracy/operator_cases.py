"""Small models of every operator that onnxruntime's CPU provider registers, in each opset.

They are onnx's own cases; those cases declared as an older opset, where its schema has the same
node; and for what has none, `operator_recipes.txt`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper, parser
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from tests import backend_cases
from tests.backend_cases import Case

Operator = tuple[str, str, int]
"""Domain, name, and the opset that brought this version of it."""

_RECIPES = Path(__file__).with_name("operator_recipes.txt")
_SHORT = {"ms.": "com.microsoft.", "ml.": "ai.onnx.ml.", "nchwc.": "com.microsoft.nchwc."}
_OPSET = 21
"""Of recipes that name no other."""
_NEWEST_IR = 10
"""Of models that are declared as an older opset."""
_DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1, "com.microsoft.nchwc": 1}


NOT_BUILT = {
    "com.microsoft.BeamSearch-1": "its body is a whole decoder",
    "com.microsoft.GreedySearch-1": "its body is a whole decoder",
    "com.microsoft.Sampling-1": "its body is a whole decoder",
    "com.microsoft.WhisperBeamSearch-1": "its bodies are a whole encoder and decoder",
    "com.microsoft.MatMulFpQ4-1": "its weights are packed by a tool that the package lacks",
    "com.microsoft.SparseAttention-1": "past and present must be one buffer, no file's matter",
    "com.microsoft.SparseToDenseMatMul-1": "the runtime makes sparse constants of files dense",
}
"""Operators that no case holds, and why."""


def list_operators() -> set[Operator]:
    """Return what onnxruntime's CPU provider has kernels of, in each version that onnx has."""
    ranges = defaultdict(list)
    for kernel in runtime.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            ranges[kernel.domain, kernel.op_name].append(kernel.version_range)
    newest = find_newest_opset()
    standard = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        standard[schema.domain, schema.name].add(schema.since_version)
    return {
        (domain, name, version)
        for (domain, name), spans in ranges.items()
        for version in standard.get((domain, name), {first for first, _ in spans})
        if any(_matches(version, span) for span in spans) and (domain or version <= newest)
    }


def _matches(version: int, span: tuple[int, int]) -> bool:
    """Say whether the runtime takes a kernel: one without an end is of its first version alone."""
    first, last = span
    return version == first or first < version <= last < 2**31 - 1


@cache
def find_newest_opset() -> int:
    """Return the newest opset that onnxruntime reads without a warning."""
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        case = make_case("", "(float[1] x) => (float[1] y) { y = Identity(x) }", opset=opset)
        if can_run(case):
            return opset
    raise AssertionError("the runtime reads no opset")


def can_run(case: Case) -> bool:
    """Say whether onnxruntime runs a case as it is written."""
    try:
        run_model(case.model.SerializeToString(), case.inputs, "ORT_DISABLE_ALL")
    except Exception:  # whatever the runtime raises
        return False
    return True


def run_model(content: bytes, inputs: Mapping[str, Any], level: str) -> list[Any]:
    """Run a model on onnxruntime's CPU provider at a level of optimization."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {v.name: inputs[v.name] for v in session.get_inputs()}))


def find_cases() -> tuple[list[Case], dict[str, str]]:
    """Return cases, onnx's own first, and the operators that none of them holds, with the why."""
    own = backend_cases.node_cases()
    bases = defaultdict(list)
    for case in [*read_recipes(), *own]:
        for node in case.model.graph.node:
            bases[node.domain, node.op_type].append(case)
    cases, missing = list(own), dict[str, str]()
    for domain, name, version in sorted(list_operators()):
        title = f"{f'{domain}.' if domain else ''}{name}-{version}"
        made = _first_that_runs(bases[domain, name], (domain, name, version), title)
        if made is None:
            missing[title] = NOT_BUILT.get(title, "no recipe fits")
            continue
        cases.append(made)
        weighted = hold_weights(made)
        cases += [weighted] if weighted is not None else []
    return cases, missing


def _first_that_runs(bases: Sequence[Case], operator: Operator, title: str) -> Case | None:
    for base in sorted(bases, key=lambda case: len(case.model.graph.node)):
        case = _declare(base, operator, title)
        if case is not None and can_run(case):
            return case
    return None


def read_recipes() -> list[Case]:
    """Return the cases of the file of recipes."""
    cases = []
    for line in _RECIPES.read_text().splitlines():
        if line and not line.startswith("#"):
            opset, text = re.fullmatch(r"(\d*) ?(.*)", line).groups()  # type: ignore[union-attr]
            cases.append(make_case("recipe", text, opset=int(opset or _OPSET)))
    return cases


def make_case(name: str, text: str, *, opset: int = _OPSET) -> Case:
    """Return a case of ONNX text; its inputs are drawn."""
    for short, domain in _SHORT.items():
        text = text.replace(f"= {short}", f"= {domain}")
    imports = ", ".join(f'"{domain}": {n}' for domain, n in {"": opset, **_DOMAINS}.items())
    model = parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> g {text}")
    used = {node.domain for node in model.graph.node} | {""}
    for entry in [entry for entry in model.opset_import if entry.domain not in used]:
        model.opset_import.remove(entry)
    rng = np.random.default_rng(7)
    drawn = {value.name: _draw(value.type, rng) for value in model.graph.input}
    return Case(name, model, drawn, [], 0, 0)


def _draw(kind: onnx.TypeProto, rng: np.random.Generator) -> Any:
    if kind.HasField("sequence_type"):
        return [_draw(kind.sequence_type.elem_type, rng) for _ in range(2)]
    if kind.HasField("map_type"):
        return {0: 1.5, 1: -0.5}
    shape = [side.dim_value for side in kind.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "O":
        return rng.choice(np.array(["a", "b c"], object), shape)
    return rng.integers(0, 4, shape).astype(dtype)


def _declare(base: Case, operator: Operator, title: str) -> Case | None:
    """Return a case in the version of an operator; None where that has no such node.

    Inputs that were attributes in that version become them.
    """
    domain, name, version = operator
    model, inputs = onnx.ModelProto(), dict(base.inputs)
    model.CopyFrom(base.model)
    model.ir_version = min(model.ir_version, _NEWEST_IR)
    entry = next((entry for entry in model.opset_import if entry.domain == domain), None)
    if entry is None:
        return None
    try:
        schema = onnx.defs.get_schema(name, version, domain)
        if onnx.defs.get_schema(name, entry.version, domain).since_version != version:
            entry.version = version
    except onnx.defs.SchemaError:  # an operator of onnxruntime
        return Case(title, model, inputs, [], 0, 0)
    for node in model.graph.node:
        if (node.domain, node.op_type) == (domain, name) and not _fit(node, schema, model, inputs):
            return None
    return Case(title, model, inputs, [], 0, 0)


def _fit(
    node: onnx.NodeProto,
    schema: onnx.defs.OpSchema,
    model: onnx.ModelProto,
    inputs: dict[str, Any],
) -> bool:
    """Turn inputs of a node into the attributes that they once were."""
    newer = onnx.defs.get_schema(node.op_type, onnx.defs.onnx_opset_version(), node.domain)
    for attribute in [a for a in node.attribute if a.name not in schema.attributes]:
        node.attribute.remove(attribute)
    known = {parameter.name.lower() for parameter in schema.inputs}
    for at in reversed(range(len(node.input))):
        parameter = newer.inputs[min(at, len(newer.inputs) - 1)].name
        value = node.input[at]
        if parameter not in schema.attributes or parameter.lower() in known:
            continue
        held = [t for t in model.graph.initializer if t.name == value]
        array = numpy_helper.to_array(held[0]) if held else inputs.pop(value, None)
        for graph_input in [v for v in model.graph.input if v.name == value]:
            model.graph.input.remove(graph_input)
        if array is not None:
            content = array.tolist()
            kind = onnx.AttributeProto.AttributeType.Value(
                str(schema.attributes[parameter].type).rpartition(".")[2]
            )
            if kind in (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT):
                content = np.ravel(array)[0].item()
            node.attribute.append(onnx.helper.make_attribute(parameter, content, attr_type=kind))
        elif value:
            return False
        del node.input[at]
    return len(node.input) <= schema.max_input


def hold_weights(case: Case) -> Case | None:
    """Return a case all of whose tensors but the first are constants, if it has more."""
    others = list(case.model.graph.input)[1:]
    arrays = {value.name: case.inputs[value.name] for value in others}
    if not arrays or not all(isinstance(a, np.ndarray) for a in arrays.values()):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in others:
        if not value.type.HasField("tensor_type"):
            return None
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
    model.ir_version = max(4, model.ir_version)
    inputs = {name: a for name, a in case.inputs.items() if name not in arrays}
    return Case(f"{case.name} weights", model, inputs, [], 0, 0)
