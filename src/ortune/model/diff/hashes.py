"""Digests of what the nodes of two models compute, whatever they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import onnx_ir as ir

from ortune.model.diff.graphs import Graphs, matched
from ortune.model.diff.operators import COMMUTATIVE, PASSED_ON


class Hashes:
    """Digests of what each value and node computes from the inputs.

    Attributes:
        values: Value -> digest.
        nodes: Node -> digest.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._within: dict[ir.Graph, str] = {}
        self.values: dict[int, str] = {}
        left, right = graphs.inputs
        for index, pair in enumerate(matched(left, right, graphs.names.__getitem__)):
            self.values |= dict.fromkeys(pair, f"input {index}")
        self.nodes: list[str] = [""] * len(graphs.nodes)
        waiting: list[int] = []
        for node in range(len(graphs.nodes)):
            while waiting and graphs.scope[node] != waiting[-1]:
                self._number(waiting.pop())
            if node in graphs.bodies:
                self._enter(node)
                waiting.append(node)
            else:
                self._number(node)
        for node in reversed(waiting):
            self._number(node)

    def _enter(self, node: int) -> None:
        """Give the inputs of a node's bodies their digests; the node waits for its bodies."""
        start = self._start(node)
        for name, body in self._graphs.bodies[node].items():
            self._within[body] = _digest((*start, name))
            for index, value in enumerate(body.inputs):
                self.values[self._graphs.number[value]] = f"{self._within[body]} {index}"

    def _start(self, node: int) -> list[str]:
        graphs = self._graphs
        read = [self._of(value) for value in graphs.reads[node]]
        settings = [f"{key}={text}" for key, text in graphs.settings[node].items()]
        if graphs.op[node] in COMMUTATIVE:
            read.sort()
        return [graphs.op[node], *settings, *read]

    def _number(self, node: int) -> None:
        graphs = self._graphs
        bodies = graphs.bodies.get(node, {}).values()
        inner = [self._of(graphs.number[value]) for body in bodies for value in body.outputs]
        digest = _digest((*self._start(node), *inner))
        graph = graphs.nodes[node].graph
        around = self._within.get(graph) if isinstance(graph, ir.Graph) else None
        self.nodes[node] = _digest((digest, around)) if around else digest
        for slot, value in enumerate(graphs.writes[node]):
            if graphs.op[node] == "Constant" and value in graphs.constants:
                self.values[value] = self._of(value)
            elif value >= 0:
                self.values[value] = f"{digest} {slot}"
        if graphs.op[node] in PASSED_ON and graphs.reads[node] and graphs.writes[node][0] >= 0:
            self.values[graphs.writes[node][0]] = self._of(graphs.reads[node][0])

    def _of(self, value: int) -> str:
        if value >= 0 and value not in self.values:
            held = self._graphs.constants.get(value)
            unknown = f"{self._graphs.side_of_value(value)} {self._graphs.names[value]}"
            self.values[value] = f"constant {held.digest}" if held is not None else unknown
        return self.values.get(value, "")


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
