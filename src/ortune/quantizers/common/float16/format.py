"""The 16-bit formats, which constants they hold, and which values of a model are floats."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit

MASK = 1e30
"""Magnitudes beyond this stand for infinity: constants are clipped, not kept in float32."""


@dataclass(frozen=True)
class Format:
    """A type narrower than float32.

    Attributes:
        numpy: The same in numpy, by ml_dtypes where numpy has none.
        smallest: Normal value: below it digits are lost one by one.
        roundoff: Largest relative error of rounding to nearest, 2 ** -digits.
    """

    dtype: ir.DataType
    numpy: Any
    largest: float
    smallest: float
    roundoff: float

    @property
    def name(self) -> str:
        """As numpy and ONNX call it."""
        return self.dtype.name.lower()

    @property
    def types(self) -> frozenset[str]:
        """As operator schemas call it."""
        return frozenset({f"tensor({self.name})", f"seq(tensor({self.name}))"})

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round to nearest; what stands for infinity becomes the largest value."""
        kept = np.where(np.isinf(values), values, np.clip(values, -self.largest, self.largest))
        return kept.astype(self.numpy)

    def holds(self, values: NDArray[Any], *, may_vanish: bool) -> bool:
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


LIKE = ("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike")
"""Operators whose output has the input's type unless an attribute names another."""


@functools.cache
def schema(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the operator's schema, or None outside the ONNX domains."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def formal(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> Iterator[onnx.defs.OpSchema.FormalParameter | None]:
    """Yield the formal parameter of each of `count` arguments; the last may be variadic."""
    for index in range(count):
        yield parameters[min(index, len(parameters) - 1)] if parameters else None


def kinds(model: ir.Model) -> dict[ir.Value, ValueKind]:
    """Return the kind of every value of the main graph and its bodies.

    Declared types count first; where shape inference left none, the schema's type variables are
    followed from inputs to outputs.
    """
    found: dict[ir.Value, ValueKind] = {}
    _of_graph(model.graph, found, model.opset_imports)
    return found


def _of_graph(graph: ir.Graph, found: dict[ir.Value, ValueKind], versions: dict[str, int]) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        found[value] = _declared(value) or ValueKind.OTHER
    for node in graph:
        for body in edit.bodies(node):
            _of_graph(body, found, versions)
        for value, kind in zip(node.outputs, _outputs(node, found, versions), strict=True):
            found[value] = _declared(value) or kind


def _declared(value: ir.Value) -> ValueKind | None:
    match value.type:
        case None:
            return None
        case ir.TensorType(dtype=ir.DataType.FLOAT):
            return ValueKind.FLOAT
        case ir.SequenceType(elem_type=ir.TensorType(dtype=ir.DataType.FLOAT)):
            return ValueKind.FLOATS
        case _:
            return ValueKind.OTHER


def _outputs(
    node: ir.Node, found: dict[ir.Value, ValueKind], versions: dict[str, int]
) -> list[ValueKind]:
    count = len(node.outputs)
    if (by_attribute := _by_attribute(node)) is not None:
        return [by_attribute] * count
    if node.op_type in LIKE and node.inputs[0] is not None:
        return [found.get(node.inputs[0], ValueKind.OTHER)]
    if inner := list(edit.bodies(node)):
        skip = {"Loop": 1}.get(node.op_type, 0)
        made = [found.get(value, ValueKind.OTHER) for value in inner[0].outputs[skip:]]
        return (made + [ValueKind.OTHER] * count)[:count]
    known = schema(node.op_type, node.domain, versions.get(node.domain, 1))
    given = [
        ValueKind.OTHER if value is None else found.get(value, ValueKind.OTHER)
        for value in node.inputs
    ]
    if known is None:
        return [given[0] if given else ValueKind.OTHER] * count
    bound: dict[str, ValueKind] = {}
    for kind, parameter in zip(given, formal(known.inputs, len(given)), strict=True):
        if parameter is not None and kind is not ValueKind.OTHER:
            bound.setdefault(parameter.type_str, kind)
    result = []
    for parameter in formal(known.outputs, count):
        text = parameter.type_str if parameter else ""
        fixed = (
            ValueKind(text)
            if text in (ValueKind.FLOAT.value, ValueKind.FLOATS.value)
            else ValueKind.OTHER
        )
        result.append(bound.get(text, fixed))
    return result


def _by_attribute(node: ir.Node) -> ValueKind | None:
    """The kind of what an attribute types, None for all other nodes."""
    if node.domain:
        return None
    match node.op_type:
        case "Constant":
            tensor = edit.const_tensor(node.outputs[0])
            dtype = None if tensor is None else tensor.dtype
        case "ConstantOfShape":
            value = edit.attribute(node, "value", None)
            dtype = ir.DataType.FLOAT if value is None else value.dtype
        case "Cast":
            dtype = ir.DataType(edit.attribute(node, "to", 0))
        case "SequenceEmpty":
            is_float = edit.attribute(node, "dtype", 1) == ir.DataType.FLOAT
            return ValueKind.FLOATS if is_float else ValueKind.OTHER
        case "RandomNormal" | "RandomUniform":
            dtype = ir.DataType(edit.attribute(node, "dtype", 1))
        case op if op in LIKE and "dtype" in node.attributes:
            dtype = ir.DataType(edit.attribute(node, "dtype", 0))
        case _:
            return None
    return ValueKind.FLOAT if dtype == ir.DataType.FLOAT else ValueKind.OTHER
