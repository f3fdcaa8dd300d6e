"""Runs a graph in pieces: some nodes in Python, what lies between them in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

Values: TypeAlias = dict[str, NDArray[Any]]
Compute: TypeAlias = Callable[[Sequence[NDArray[Any] | None]], NDArray[Any]]


@dataclass
class Piece:
    """Neighbouring nodes and the session that runs them, made when their inputs are first known.

    Attributes:
        nodes: NodeProtos in order.
        compute: Python in the session's place, for one node.
    """

    nodes: list[Any]
    compute: Compute | None = None
    session: Any = None
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class Pieces:
    """A model that runs piece by piece.

    Args:
        model: ModelProto with its weights.
        own: Returns what computes a node, or None for onnxruntime.
        open_: Opens a session on serialized bytes.
    """

    def __init__(
        self,
        model: Any,
        own: Callable[[Any], Compute | None],
        open_: Callable[[bytes], Any],
    ) -> None:
        from onnx import numpy_helper

        self._model = model
        self._open = open_
        graph = model.graph
        self._held = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._protos = {t.name: t for t in graph.initializer}
        self._wanted = [value.name for value in graph.output]
        self._pieces = list(_split(graph.node, own))
        self._link()

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Values:
        values: Values = dict(feeds)
        for piece in self._pieces:
            if piece.compute is not None:
                node = piece.nodes[0]
                given = [self._needed(values, name) if name else None for name in node.input]
                values[node.output[0]] = piece.compute(given)
                continue
            if piece.session is None:
                piece.session = self._session(piece, values)
            found = piece.session.run(piece.outputs, {name: values[name] for name in piece.inputs})
            values.update(zip(piece.outputs, found, strict=True))
        return {name: self._needed(values, name) for name in self._wanted}

    def _needed(self, values: Values, name: str) -> NDArray[Any]:
        return values[name] if name in values else self._held[name]

    def _link(self) -> None:
        """Find what each piece takes from before and what later ones take from it."""
        later = set(self._wanted)
        for piece in reversed(self._pieces):
            made = {name for node in piece.nodes for name in node.output if name}
            piece.outputs = sorted(made & later)
            reads = {name for node in piece.nodes for name in _reads(node)}
            piece.inputs = sorted(reads - made - set(self._held))
            later |= reads

    def _session(self, piece: Piece, values: Values) -> Any:
        from onnx import ModelProto, helper

        reads = {name for node in piece.nodes for name in _reads(node)}
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(values[name].dtype),
                [None] * values[name].ndim,
            )
            for name in piece.inputs
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in piece.outputs]
        held = [self._protos[name] for name in sorted(reads & set(self._protos))]
        model = ModelProto(
            ir_version=self._model.ir_version, opset_import=self._model.opset_import
        )
        model.functions.extend(self._model.functions)
        model.graph.CopyFrom(helper.make_graph(piece.nodes, "piece", inputs, outputs, held))
        return self._open(model.SerializeToString())


def _split(nodes: Iterable[Any], own: Callable[[Any], Compute | None]) -> Iterable[Piece]:
    waiting: list[Any] = []
    for node in nodes:
        compute = own(node)
        if compute is None:
            waiting.append(node)
            continue
        if waiting:
            yield Piece(waiting)
            waiting = []
        yield Piece([node], compute)
    if waiting:
        yield Piece(waiting)


def _reads(node: Any) -> Iterable[str]:
    """Return the names that a node reads, those that its bodies read from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
            inner = {v.name for v in (*body.input, *body.initializer)}
            inner |= {name for one in body.node for name in one.output}
            for one in body.node:
                yield from (name for name in _reads(one) if name not in inner)
            yield from (v.name for v in body.output if v.name not in inner)


def plain(node: Any) -> dict[str, Any]:
    """Return a node's attributes as Python values."""
    from onnx import helper

    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
