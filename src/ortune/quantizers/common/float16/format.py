"""The 16-bit formats, which constants they hold, and which values of a model are floats."""

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import Refused
from ortune.graph.ir import edit

MASK = 1e30
"""Magnitudes beyond this stand for infinity: constants are clipped, not kept in float32."""


@dataclass(frozen=True)
class Format:
    """A type narrower than float32."""

    dtype: ir.DataType
    numpy: Any  # the same in numpy, by ml_dtypes where numpy has none
    largest: float
    smallest: float  # normal value: below it digits are lost one by one
    roundoff: float  # largest relative error of rounding to nearest, 2 ** -digits

    @property
    def name(self) -> str:
        """The format's name in numpy and ONNX."""
        return self.dtype.name.lower()

    @property
    def types(self) -> frozenset[str]:
        """The format's names in operator schemas."""
        return frozenset({f"tensor({self.name})", f"seq(tensor({self.name}))"})

    def round_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round to nearest; what stands for infinity becomes the largest value."""
        kept = np.where(np.isinf(values), values, np.clip(values, -self.largest, self.largest))
        return kept.astype(self.numpy)

    def can_hold(self, values: NDArray[Any], *, may_vanish: bool) -> bool:
        """A constant fits unless it overflows, or all of it would lose its leading digits."""
        if not values.size:
            return True
        largest = max(float(np.max(values)), -float(np.min(values)))
        if largest > self.largest:
            size = np.abs(values)
            return bool(np.all((size <= self.largest) | (size >= MASK)))
        return may_vanish or largest == 0 or largest >= self.smallest or np.isnan(largest)


FLOAT16 = Format(ir.DataType.FLOAT16, np.float16, 65504.0, 2.0**-14, 2.0**-11)
BFLOAT16 = Format(
    ir.DataType.BFLOAT16, ml_dtypes.bfloat16, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-8
)


class ValueKind(enum.Enum):
    """What matters of a value's type."""

    FLOAT = "tensor(float)"
    FLOATS = "seq(tensor(float))"
    OTHER = "other"


CONTROL = ("If", "Loop", "Scan")
"""Operators whose bodies are converted with them."""

LIKE = ("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike")
"""Operators whose output has the input's type unless an attribute names another."""


@functools.cache
def find_schema(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the operator's schema, or None outside the ONNX domains."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def list_formal_parameters(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> Iterator[onnx.defs.OpSchema.FormalParameter | None]:
    """Yield the formal parameter of each of `count` arguments; the last may be variadic."""
    for index in range(count):
        yield parameters[min(index, len(parameters) - 1)] if parameters else None


def infer_value_kinds(model: ir.Model) -> dict[ir.Value, ValueKind]:
    """Return the kind of every value of the main graph and its bodies.

    Declared types count first; where shape inference left none, the schema's type variables are
    followed from inputs to outputs.
    """
    value_kinds: dict[ir.Value, ValueKind] = {}
    _infer_graph_kinds(model.graph, value_kinds, model.opset_imports)
    return value_kinds


def _infer_graph_kinds(
    graph: ir.Graph, value_kinds: dict[ir.Value, ValueKind], versions: dict[str, int]
) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        value_kinds[value] = _read_declared_kind(value) or ValueKind.OTHER
    for node in graph:
        for body in edit.list_bodies(node):
            _infer_graph_kinds(body, value_kinds, versions)
        kinds = _infer_output_kinds(node, value_kinds, versions)
        for value, kind in zip(node.outputs, kinds, strict=True):
            value_kinds[value] = _read_declared_kind(value) or kind


def _read_declared_kind(value: ir.Value) -> ValueKind | None:
    match value.type:
        case None:
            return None
        case ir.TensorType(dtype=ir.DataType.FLOAT):
            return ValueKind.FLOAT
        case ir.SequenceType(elem_type=ir.TensorType(dtype=ir.DataType.FLOAT)):
            return ValueKind.FLOATS
        case _:
            return ValueKind.OTHER


def _infer_output_kinds(
    node: ir.Node, value_kinds: dict[ir.Value, ValueKind], versions: dict[str, int]
) -> list[ValueKind]:
    count = len(node.outputs)
    if (by_attribute := _infer_from_attribute(node)) is not None:
        return [by_attribute] * count
    if node.op_type in LIKE and node.inputs[0] is not None:
        return [value_kinds.get(node.inputs[0], ValueKind.OTHER)]
    if inner := list(edit.list_bodies(node)):
        skip = {"Loop": 1}.get(node.op_type, 0)
        body_kinds = [value_kinds.get(value, ValueKind.OTHER) for value in inner[0].outputs[skip:]]
        return (body_kinds + [ValueKind.OTHER] * count)[:count]
    op_schema = find_schema(node.op_type, node.domain, versions.get(node.domain, 1))
    input_kinds = [
        ValueKind.OTHER if value is None else value_kinds.get(value, ValueKind.OTHER)
        for value in node.inputs
    ]
    if op_schema is None:
        return [input_kinds[0] if input_kinds else ValueKind.OTHER] * count
    bound: dict[str, ValueKind] = {}
    parameters = list_formal_parameters(op_schema.inputs, len(input_kinds))
    for kind, parameter in zip(input_kinds, parameters, strict=True):
        if parameter is not None and kind is not ValueKind.OTHER:
            bound.setdefault(parameter.type_str, kind)
    result = []
    for parameter in list_formal_parameters(op_schema.outputs, count):
        text = parameter.type_str if parameter else ""
        is_float = text in (ValueKind.FLOAT.value, ValueKind.FLOATS.value)
        fixed = ValueKind(text) if is_float else ValueKind.OTHER
        result.append(bound.get(text, fixed))
    return result


def _infer_from_attribute(node: ir.Node) -> ValueKind | None:
    """The kind of what an attribute types, None for all other nodes."""
    if node.domain:
        return None
    match node.op_type:
        case "Constant":
            tensor = edit.const_tensor(node.outputs[0])
            dtype = None if tensor is None else tensor.dtype
        case "ConstantOfShape":
            value = edit.read_attribute(node, "value", None)
            dtype = ir.DataType.FLOAT if value is None else value.dtype
        case "Cast":
            dtype = ir.DataType(edit.read_attribute(node, "to", 0))
        case "SequenceEmpty":
            is_float = edit.read_attribute(node, "dtype", 1) == ir.DataType.FLOAT
            return ValueKind.FLOATS if is_float else ValueKind.OTHER
        case "RandomNormal" | "RandomUniform":
            dtype = ir.DataType(edit.read_attribute(node, "dtype", 1))
        case op if op in LIKE and "dtype" in node.attributes:
            dtype = ir.DataType(edit.read_attribute(node, "dtype", 0))
        case _:
            return None
    return ValueKind.FLOAT if dtype == ir.DataType.FLOAT else ValueKind.OTHER


def find_sequence_nodes(
    model: ir.Model, value_kinds: Mapping[ir.Value, ValueKind]
) -> frozenset[ir.Node]:
    """Return what makes or reads sequences that are inputs or outputs: no Cast takes one.

    Raises:
        Refused: A control operator makes or reads one, whose body would be converted.
    """
    ends = (*model.graph.inputs, *model.graph.outputs)
    todo = [value for value in ends if value_kinds.get(value) is ValueKind.FLOATS]
    nodes: set[ir.Node] = set()
    while todo:
        value = todo.pop()
        makers = [maker] if (maker := value.producer()) is not None else []
        for node in {*makers, *(use.node for use in value.uses())} - nodes:
            if node.op_type in CONTROL:
                raise Refused(
                    f"sequence '{value.name}' passes through {node.op_type} and is an input or "
                    "output, which keeps its float32",
                    fix="give keep_io=false, or leave the step out",
                )
            nodes.add(node)
            touched = (*node.inputs, *node.outputs)
            todo += [v for v in touched if v and value_kinds.get(v) is ValueKind.FLOATS]
    return frozenset(nodes)
