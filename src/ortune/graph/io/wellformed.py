"""What a parsed file must hold to be made a graph, and a model after each step."""

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from onnx import AttributeProto
from onnx.defs import OpSchema

from ortune.core.errors import BadModel, summarize_error
from ortune.core.facts import TensorSpec
from ortune.core.wording import format_count
from ortune.graph.io import external
from ortune.graph.io.protobuf import MOST, walk_messages
from ortune.graph.io.write import serialize_without_weights
from ortune.graph.ir import edit
from ortune.graph.ir.edit import Graph, list_bodies

MOST_DENSE = 1 << 28
"""Bytes that a sparse tensor may take once it is dense; its file says only the shape."""

_MOST_DIMS = 64
"""As many dimensions as NumPy arrays have at most."""


class Invalid(Exception):
    """The model breaks a rule of ONNX; the text says which, and where."""

    def __init__(self, text: str, fix: str = "export it again") -> None:
        super().__init__(text)
        self.fix = fix


def demand_tensor(tensor: onnx.TensorProto) -> None:
    """Refuse a tensor of another length than type and shape say, or with values in two fields.

    What lies in files is checked for its place alone, and for its length once they are mapped.

    Raises:
        Invalid: Something does not hold.
    """
    label = f"tensor '{tensor.name}'"
    dims = list(tensor.dims)
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype == ir.DataType.UNDEFINED:
        raise Invalid(f"{label} is of data type {tensor.data_type}, which there is not")
    if len(dims) > _MOST_DIMS:
        raise Invalid(f"{label} has {format_count(len(dims), 'dimension')}")
    if any(dim < 0 for dim in dims) or math.prod(d or 1 for d in dims) >= 1 << 59:
        raise Invalid(f"{label} has the shape {dims}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not (
                entry.value.isascii() and entry.value.isdigit() and len(entry.value) < 20
            ):
                raise Invalid(f"{label} has the {entry.key} '{entry.value[:40]}' in its file")
        return
    field = _DATA_FIELDS.get(dtype, "int32_data")
    if tensor.HasField("raw_data") and dtype != ir.DataType.STRING:
        field = "raw_data"
    for other in (*_DATA_FIELDS.values(), "int32_data", "raw_data"):
        if other != field and len(getattr(tensor, other)):
            raise Invalid(f"{label} of {dtype.name} has {other}, where {field} counts")
    actual, expected, unit = _measure_data(tensor, dtype, field)
    if actual != expected:
        raise Invalid(
            f"{label} holds {actual} {unit} where its shape {dims} of {dtype.name} makes "
            f"{expected}"
        )


def _measure_data(
    tensor: onnx.TensorProto, dtype: ir.DataType, field: str
) -> tuple[int, int, str]:
    """Return how much a tensor holds in a field, how much it should, and of what."""
    size = math.prod(tensor.dims)
    if field == "raw_data":
        return len(tensor.raw_data), math.ceil(size * dtype.bitwidth / 8), "bytes"
    packed = 1 if dtype == ir.DataType.STRING else max(1, 8 // dtype.bitwidth)
    expected = -(-size // packed) * (2 if dtype in _COMPLEX else 1)
    return len(getattr(tensor, field)), expected, "values" if packed == 1 else "bytes"


_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
_DATA_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Where a tensor keeps its values when not as raw bytes; all others in int32_data."""


def demand_sparse(tensor: onnx.SparseTensorProto) -> None:
    """Refuse a sparse tensor that cannot be made dense.

    Raises:
        Invalid: It is too large for that, its parts are no tensors, or lie in other files.
    """
    dims: Sequence[int] = list(tensor.dims)
    for part in (tensor.values, tensor.indices):
        if part.data_location == onnx.TensorProto.EXTERNAL:
            raise Invalid(f"sparse tensor '{tensor.values.name}' lies in a file")
        demand_tensor(part)
    dtype = ir.DataType(tensor.values.data_type)
    if dtype == ir.DataType.STRING or tensor.indices.data_type != onnx.TensorProto.INT64:
        raise Invalid(f"sparse tensor '{tensor.values.name}' has strings, or no int64 indices")
    if any(dim < 0 for dim in dims) or math.prod(dims) * dtype.bitwidth > 8 * MOST_DENSE:
        raise Invalid(f"sparse tensor '{tensor.values.name}' has the shape {dims}")


_SAYS_OPSET = 3
"""IR version from which a model says the opset of its operators."""

_UNTIL = {
    "LayerNormalization": 17,
    "MeanVarianceNormalization": 9,
    "SimplifiedLayerNormalization": 1 << 30,
    **dict.fromkeys(("Affine", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill"), 10),
    **dict.fromkeys(("ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"), 10),
    "ThresholdedRelu": 10,
    **dict.fromkeys(("DisentangledAttention_TRT", "EfficientNMS_TRT"), 1 << 30),
    **dict.fromkeys(("MultilevelCropAndResize_TRT", "PyramidROIAlign_TRT"), 1 << 30),
}
"""Operators that onnxruntime has put into the default domain -> the opset where ONNX takes over,
or where onnxruntime drops them."""

_OURS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten")
"""Domains of operators that onnxruntime brings, imported or not."""

_DEEPEST_CALLS = 100

_MOST_SLOTS = 10_000
"""Outputs of a model, inputs or outputs of a node: each edit at one of them goes through all. The
models in use that have most hand out the states of a hundred layers."""


def validate_model(proto: onnx.ModelProto, *, newer_opset: bool) -> None:
    """Refuse what no runtime takes and what nothing here is written for.

    Checked: the opset; that functions end; for operators that ONNX knows how many inputs and
    outputs they have and of which types their attributes are; that tensors are as long as type
    and shape say, and where they lie in other files.

    Args:
        newer_opset: Let an opset pass that is not known here.

    Raises:
        Invalid: Something does not hold.
    """
    # Protobuf hands a string that is not UTF-8 out as bytes, and would not write it again.
    for message in walk_messages(proto):
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING:
                for text in [value] if isinstance(value, (str, bytes)) else value:
                    if not isinstance(text, str):
                        raise Invalid(f"the name {text!r} is not UTF-8")
    versions = {_normalize_domain(entry.domain): entry.version for entry in proto.opset_import}
    if not versions and proto.ir_version >= _SAYS_OPSET:
        raise Invalid("it does not say which opset its operators are of")
    _check_opset(versions.get("", 1), newer_opset)
    _check_functions(proto)
    if (count := len(proto.graph.output)) > _MOST_SLOTS:
        raise Invalid(
            f"it has {count:,} outputs, over {_MOST_SLOTS:,}",
            fix="export fewer of them, or join them by Concat",
        )
    function_domains = {_normalize_domain(entry.domain) for entry in proto.functions}
    for nodes, opsets in _walk_bodies(proto, versions):
        for node in nodes:
            if (count := max(len(node.input), len(node.output))) > _MOST_SLOTS:
                raise Invalid(
                    f"node '{node.name}' ({node.op_type}) has {count:,} inputs or outputs, over "
                    f"{_MOST_SLOTS:,}",
                    fix="export it as several nodes",
                )
            _check_node(node, opsets)
            _check_domain(node, opsets, function_domains)
    for tensor in external.walk_tensors(proto):
        demand_tensor(tensor)


def is_runtime_operator(op: str, domain: str, opset: int) -> bool:
    """Say whether onnxruntime runs an operator of the default domain that ONNX does not have."""
    added = not _normalize_domain(domain) and opset < _UNTIL.get(op, 0)
    return added and load_schema(op, "", opset) is None


def _normalize_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_domain(
    node: onnx.NodeProto, imported: Mapping[str, int], function_domains: Collection[str]
) -> None:
    """A runtime knows the opsets of its own operators; of others the model has to say them."""
    domain = _normalize_domain(node.domain)
    unsaid = domain and domain not in imported and domain not in function_domains
    if unsaid and not domain.startswith(_OURS):
        raise Invalid(
            f"node '{node.name}' ({node.op_type}) is of the domain '{domain}', "
            "which the model does not import"
        )


def _check_opset(version: int, newer: bool) -> None:
    newest = onnx.defs.onnx_opset_version()
    if version < 1 or (version > newest and not newer):
        problem = f"opset {version} is not known here, where {newest} is the newest"
        raise Invalid(problem, fix=f"export it with opset {newest} or older")


def _check_functions(proto: onnx.ModelProto) -> None:
    """Nothing may call itself, and what calls others twice, thirty deep, is a thousand million."""
    functions = {_make_key(callee): callee.node for callee in proto.functions}
    if not functions:
        return
    calls = {
        key: [_make_key(node) for node in walk_node_protos(nodes) if _make_key(node) in functions]
        for key, nodes in functions.items()
    }
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        names = " -> ".join(key[1] for key in error.args[1])
        raise Invalid(f"its functions call each other without an end: {names}") from None
    sizes: dict[tuple[str, str, str], int] = {}
    depths: dict[tuple[str, str, str], int] = {}
    for key in order:
        depths[key] = 1 + max((depths[callee] for callee in calls[key]), default=0)
        sizes[key] = _count_nodes(functions[key], sizes)
    total = _count_nodes(proto.graph.node, sizes)
    if max(depths.values()) > _DEEPEST_CALLS:
        raise Invalid(f"its functions call each other {max(depths.values())} deep")
    if total > MOST:
        raise Invalid(
            f"with its functions written out it has {format_count(total, 'node')}, over {MOST:,}"
        )


def _count_nodes(
    nodes: Iterable[onnx.NodeProto], sizes: Mapping[tuple[str, str, str], int]
) -> int:
    return sum(sizes.get(_make_key(node), 1) for node in walk_node_protos(nodes))


def _make_key(proto: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, str, str]:
    name = proto.op_type if isinstance(proto, onnx.NodeProto) else proto.name
    return proto.domain, name, proto.overload


def walk_node_protos(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of the bodies inside them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in _list_graphs(attribute):
                yield from walk_node_protos(graph.node)


def _list_graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _walk_bodies(
    proto: onnx.ModelProto, versions: Mapping[str, int]
) -> Iterator[tuple[Iterator[onnx.NodeProto], Mapping[str, int]]]:
    """Yield nodes, and domain -> opset of the operators that they are."""
    yield walk_node_protos(proto.graph.node), versions
    for function in proto.functions:
        imports = {_normalize_domain(e.domain): e.version for e in function.opset_import}
        yield walk_node_protos(function.node), {**versions, **imports}


@cache
def load_schema(name: str, domain: str, version: int) -> OpSchema | None:
    """Return an operator's schema; None where ONNX has none of that name in that opset."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def _check_node(node: onnx.NodeProto, versions: Mapping[str, int]) -> None:
    label = f"node '{node.name}' ({node.op_type})"
    domain = _normalize_domain(node.domain)
    version = versions.get(domain, 1 if not domain else 0)
    schema = load_schema(node.op_type, domain, version)
    if schema is None:
        _check_attributes(label, node)
        return
    _check_count(label, "input", len(node.input), schema.min_input, schema.max_input)
    _check_count(label, "output", len(node.output), schema.min_output, schema.max_output)
    for name, parameter in zip(node.input, schema.inputs, strict=False):
        if not name and parameter.option == OpSchema.FormalParameterOption.Single:
            raise Invalid(f"{label} is not given its input '{parameter.name}'")
    attributes = {parameter.name: parameter for parameter in node.attribute}
    for name, attribute in attributes.items():
        if name not in schema.attributes:
            continue
        expected = _KINDS[schema.attributes[name].type]
        if attribute.type != expected:
            kinds = [
                AttributeProto.AttributeType.Name(k).lower() for k in (attribute.type, expected)
            ]
            raise Invalid(f"{label}: attribute '{name}' is {kinds[0]}, not {kinds[1]}")
        unset = attribute.i == AttributeProto.UNDEFINED and name != "output_dtype"
        unknown = unset or attribute.i not in _KNOWN_TYPES
        if name in _TYPES and expected == AttributeProto.INT and unknown:
            raise Invalid(f"{label}: {name}={attribute.i} is no data type")
    for name, formal in schema.attributes.items():
        if formal.required and name not in attributes:
            raise Invalid(f"{label} has no attribute '{name}'")
    _check_attributes(label, node)


def _check_attributes(label: str, node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        field = _FIELDS.get(attribute.type, "")
        if attribute.ref_attr_name:  # the caller of a function gives it
            continue
        if attribute.type == AttributeProto.UNDEFINED or (field and not attribute.HasField(field)):
            raise Invalid(
                f"{label}: attribute '{attribute.name}' holds nothing of the type it says"
            )


_KINDS = {
    getattr(OpSchema.AttrType, name): number
    for name, number in AttributeProto.AttributeType.items()
    if number != AttributeProto.UNDEFINED
}
_FIELDS = {
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}
"""Type of an attribute -> the field that it is in; a number or a text may be left out for 0."""
_TYPES = ("to", "dtype", "output_dtype")
_KNOWN_TYPES = frozenset(dtype.value for dtype in ir.DataType)


def _check_count(label: str, kind: str, actual: int, least: int, most: int) -> None:
    if not least <= actual <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        expected = f"{least} or more" if most > 1 << 30 else expected
        raise Invalid(f"{label} has {actual} {kind}{'s' * (actual != 1)}, where {expected} belong")


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
        for node in walk_node_protos(nodes):
            if is_runtime_operator(node.op_type, node.domain, opset):
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
