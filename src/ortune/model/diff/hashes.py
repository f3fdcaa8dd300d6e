"""Digests of what the nodes of two models compute, whatever they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ortune.model.diff.operators import COMMUTATIVE, PASSED_ON
from ortune.model.diff.side import Side
from ortune.model.diff.weights import Held


class Hashes:
    """Digests of what each value and node computes from the inputs.

    Loose ones take weights by their size alone, know one floating-point type, and see through
    runtimes' variants of an operator.
    """

    def __init__(self, side: Side, labels: dict[int, str], *, loose: bool = False) -> None:
        self._side, self._loose = side, loose
        self.values: dict[int, str] = dict(labels)
        self.nodes: list[str] = [""] * len(side.nodes)
        self._within: dict[ir.Graph, str] = {}
        open_: list[int] = []
        for node in range(len(side.nodes)):
            while open_ and side.scope[node] != open_[-1]:
                self._number(open_.pop())
            if node in side.body:
                self._enter(node)
                open_.append(node)
            else:
                self._number(node)
        for node in reversed(open_):
            self._number(node)

    def _enter(self, node: int) -> None:
        """Give the inputs of a node's bodies their digests; the node waits for its bodies."""
        start = self._start(node)
        for name, body in self._side.body[node].items():
            self._within[body] = _digest((*start, name))
            for index, value in enumerate(body.inputs):
                number = self._side.number(value)
                self.values[number] = f"{self._within[body]} {index}"

    def _start(self, node: int) -> list[str]:
        side = self._side
        read = [self.of(value) for value in side.reads[node]]
        said = [f"{key}={text}" for key, text in side.said[node].items()]
        if side.op[node] in COMMUTATIVE:
            read.sort()
        return [(side.role if self._loose else side.op)[node], *said, *read]

    def _number(self, node: int) -> None:
        side = self._side
        bodies = side.body.get(node, {}).values()
        inner = [self.of(side.number(value)) for body in bodies for value in body.outputs]
        digest = _digest((*self._start(node), *inner))
        graph = side.nodes[node].graph
        around = self._within.get(graph) if graph is not None else None
        self.nodes[node] = _digest((digest, around)) if around else digest
        passed = side.op[node] in PASSED_ON and side.reads[node]
        for slot, value in enumerate(side.writes[node]):
            if value in side.held and side.op[node] == "Constant":
                self.values[value] = self.of(value)
            elif value >= 0:
                self.values[value] = f"{digest} {slot}"
        if passed and side.writes[node][0] >= 0:
            self.values[side.writes[node][0]] = self.of(side.reads[node][0])

    def of(self, value: int) -> str:
        """Return the digest of a value."""
        if value < 0:
            return ""
        found = self.values.get(value)
        if found is None:
            held = self._side.held.get(value)
            found = self._content(held) if held is not None else f"{self._side.names[value]}"
            self.values[value] = found
        return found

    def _content(self, held: Held) -> str:
        if self._loose and held.floating and held.size > 1:
            return f"weight {sorted(held.shape)}"
        if self._loose and held.floating:
            return f"number {float(np.ravel(held.floats())[0]):.3g}" if held.size else "empty"
        return f"constant {held.digest}"


def interface(one: Side, two: Side) -> tuple[dict[int, str], dict[int, str]]:
    """Label the inputs: those of one name, then of one place."""
    first, second = matched(one, two, one.inputs, two.inputs)
    labels = (
        {value: f"input {index}" for index, value in enumerate(first)},
        {value: f"input {index}" for index, value in enumerate(second)},
    )
    for side, label, which in ((one, labels[0], "a"), (two, labels[1], "b")):
        for value in side.inputs:
            label.setdefault(value, f"input {which} {side.names[value]}")
    return labels


def matched(
    one: Side, two: Side, left: Sequence[int], right: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the values of two lists that stand for each other: of one name, then of one place."""
    named = {two.names[value]: value for value in right}
    pairs = [(v, named[one.names[v]]) for v in left if one.names[v] in named]
    taken = {v for v, _ in pairs}, {v for _, v in pairs}
    pairs += zip(
        [value for value in left if value not in taken[0]],
        [value for value in right if value not in taken[1]],
        strict=False,
    )
    return [v for v, _ in pairs], [v for _, v in pairs]


def _digest(parts: Iterable[str]) -> str:
    """Return a short digest of texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
