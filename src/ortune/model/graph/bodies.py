"""Where the values of a protobuf model are made: in which body, by what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

ODD = frozenset(range(onnx.TensorProto.BFLOAT16, max(onnx.TensorProto.DataType.values()) + 1))
"""Element types that NumPy lacks: bfloat16 and all that came after it."""


@dataclass(frozen=True)
class Step:
    """A body on the way to a value.

    Attributes:
        parent: The graph that holds the node.
        node: The node that holds the body.
        attribute: Its attribute's name.
        body: The graph in it.
    """

    parent: onnx.GraphProto
    node: onnx.NodeProto
    attribute: str
    body: onnx.GraphProto


@dataclass(frozen=True)
class Place:
    """Where a value is made.

    Attributes:
        path: Bodies from the outermost in; none for the main graph.
        made_by: Operator; empty for inputs.
    """

    path: tuple[Step, ...]
    made_by: str


def places(graph: onnx.GraphProto, path: tuple[Step, ...] = ()) -> Iterator[tuple[str, Place]]:
    """Yield every input and node output of a graph and its bodies, by name."""
    for value in graph.input:
        yield value.name, Place(path, "")
    for node in graph.node:
        for name in node.output:
            if name:
                yield name, Place(path, node.op_type)
        for attribute, body in _bodies(node):
            yield from places(body, (*path, Step(graph, node, attribute, body)))


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its bodies."""
    yield graph
    for node in graph.node:
        for _, body in _bodies(node):
            yield from graphs(body)


def kinds(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield element types that a graph's weights have and its nodes make by their attributes."""
    yield from (tensor.data_type for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype"):
                yield attribute.i


def odd(kind: onnx.TypeProto) -> bool:
    """Say whether a type is a tensor that NumPy lacks."""
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type in ODD


def _bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.name, attribute.g
