"""The large and the hidden parts of a model: its biggest tensors, bodies and functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortune.model.analysis.node_costs import value_bytes
from ortune.model.graph.edit import every_graph
from ortune.model.graph.spec import dtype_name, shape_of, type_name
from ortune.model.graph.values import named_weights
from ortune.model.parts.extract import reads

_NAMED = 3


@dataclass(frozen=True)
class LargeTensor:
    """A weight or an activation.

    Attributes:
        kind: ``weight`` or ``activation``.
        name: Of the value.
        dtype: NumPy's name.
        shape: As it is declared or inferred.
        size: Bytes; dynamic dimensions count as 1.
        readers: Nodes that read it.
        read_by: The first three of them.
    """

    kind: str
    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    size: int
    readers: int
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """A graph inside a node.

    Attributes:
        node: The node that holds it.
        op: Its operator.
        attribute: Under this name.
        nodes: Nodes of the body itself.
        captured: Values of the graphs around it that it reads.
    """

    node: str
    op: str
    attribute: str
    nodes: int
    captured: int


@dataclass(frozen=True)
class LocalFunction:
    """A function that the model brings along.

    Attributes:
        name: As ``domain::name``.
        nodes: Of its body.
        calls: Nodes that call it.
    """

    name: str
    nodes: int
    calls: int


def tensors(model: ir.Model, shaped: ir.Model, count: int) -> list[LargeTensor]:
    """Return the `count` biggest weights, then the `count` biggest activations.

    Args:
        model: As loaded.
        shaped: The same with shapes.
        count: Of each kind.
    """
    readers: dict[str, list[str]] = {}
    for graph in every_graph(model):
        for node in graph:
            for value in dict.fromkeys(v for v in node.inputs if v is not None and v.name):
                readers.setdefault(str(value.name), []).append(str(node.name))

    def made(
        kind: str, name: str, dtype: str, shape: tuple[int | str | None, ...], size: int
    ) -> LargeTensor:
        found = readers.get(name, [])
        return LargeTensor(kind, name, dtype, shape, size, len(found), tuple(found[:_NAMED]))

    weights = [
        made("weight", name, dtype_name(t.dtype), tuple(t.shape.numpy()), t.nbytes)
        for name, t in named_weights(model)
    ]
    values = (v for node in shaped.graph.all_nodes() for v in node.outputs if v.name)
    active = [
        made("activation", str(v.name), type_name(v.type), shape_of(v) or (), size)
        for v in values
        if v.const_value is None and (size := value_bytes(v)) is not None
    ]
    return [*_biggest(weights, count), *_biggest(active, count)]


def local_bodies(model: ir.Model) -> Iterator[Body]:
    """Yield the bodies of If, Loop and Scan, in the order of the file."""
    for node in model.graph.all_nodes():
        own = {value for value in node.inputs if value is not None}
        captured = len({value for value in reads(node) if value not in own})
        for name, attribute in node.attributes.items():
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                yield Body(str(node.name), node.op_type, name, len(body), captured)


def local_functions(model: ir.Model) -> Iterator[LocalFunction]:
    """Yield the functions that the file defines."""
    calls = Counter((n.domain, n.op_type) for graph in every_graph(model) for n in graph)
    for one in model.functions.values():
        yield LocalFunction(f"{one.domain}::{one.name}", len(one), calls[one.domain, one.name])


def _biggest(every: list[LargeTensor], count: int) -> list[LargeTensor]:
    return sorted(every, key=lambda one: -one.size)[:count]
