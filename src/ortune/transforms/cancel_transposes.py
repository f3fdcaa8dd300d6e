"""Transposes that undo each other across arithmetic between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.match import maker
from ortune.model.graph.replace import forward, remove
from ortune.model.graph.spec import dims
from ortune.model.graph.values import overridable
from ortune.model.shapes.infer import infer
from ortune.model.shapes.named_dims import ELEMENTWISE, UNARY
from ortune.rewrites.simplify.reshapes import permutation


@dataclass(frozen=True)
class CancelTransposes(Transform):
    """Arithmetic between Transposes is done in the order before them.

    ::

        transpose(f(transpose(x, p)), q) = transpose(f(x), p[q])       f element by element
        f(transpose(x, p), transpose(y, p)) = transpose(f(x, y), p)

    All that follows from a Transpose element by element is one region: its other operands are
    constants (stored transposed), results of the region, or Transposes by the same order. The
    Transposes into it go, those behind it that undo p too, others take their order over; one is
    added for everything else that reads the region. Done only where fewer are left. Softmax has
    its axis moved. Exact.

    onnxruntime does it itself in float while it loads, and then it gains nothing; what reads the
    file does not see that. Four convolutions with Add and Relu between Transposes to NHWC and
    back as int8: 7 nodes instead of 19, 0.72 [0.71, 0.74] of the time on one core. It comes last:
    patterns of attention name their Transposes.
    """

    stage: ClassVar[Stage] = Stage.FINISH

    def applies(self, facts: Facts) -> bool:
        """There is a Transpose."""
        return facts.has("Transpose")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many Transposes less there are."""
        if model.opset_imports.get("", 0) < _FIRST:
            return 0
        infer(model)
        count = 0
        for graph in (model.graph, *list(model.graph.subgraphs())):
            for node in list(graph):
                if node.graph is not None and _is_transpose(node):
                    count += _undone(node)
            for node in list(graph):
                if node.graph is not None and _is_transpose(node):
                    region = _grow(node)
                    count += region.rewrite(model) if region is not None else 0
        if count:
            prune.drop_dead(model)
        return count


_FIRST = 13
"""Opset from which Softmax works along one axis alone."""

_ALONG = frozenset(("Softmax", "LogSoftmax"))


@dataclass
class _Region:
    """What follows from Transposes by one order, element by element."""

    perm: tuple[int, ...]
    graph: ir.Graph
    sources: dict[ir.Node, None] = field(default_factory=dict)
    nodes: dict[ir.Node, None] = field(default_factory=dict)

    def rewrite(self, model: ir.Model) -> int:
        """Move the Transposes behind the region where fewer are left; return how many less."""
        inside = set(self.nodes)
        gone = [n for n in self.sources if all(u in inside for u, _ in n.outputs[0].uses())]
        gone = [n for n in gone if not n.outputs[0].is_graph_output()]
        undone, added = 0, 0
        for node in self.nodes:
            value, behind = node.outputs[0], 0
            for user, _ in value.uses():
                if user in inside:
                    continue
                if _is_transpose(user) and user.graph is self.graph:
                    undone += self._joined(user) == tuple(range(len(self.perm)))
                else:
                    behind = 1
            added += behind or value.is_graph_output()
        gain = len(gone) + undone - added
        if gain <= 0 or not self.nodes:
            return 0
        self._turn(model)
        return gain

    def _joined(self, node: ir.Node) -> tuple[int, ...]:
        behind = permutation(node) or ()
        return tuple(self.perm[axis] for axis in behind)

    def _turn(self, model: ir.Model) -> None:
        editor = edit.Editor(model.graph)
        inverse = tuple(int(axis) for axis in np.argsort(self.perm))
        inside = set(self.nodes)
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                source = maker(value, "Transpose")
                if source in self.sources:
                    node.replace_input_with(index, source.inputs[0])
                elif value is not None and index in _operands(node):
                    self._constant(node, index, value, inverse, editor)
            if node.op_type in _ALONG:
                axis = edit.attribute(node, "axis", -1)
                node.attributes["axis"] = ir.AttrInt64("axis", self.perm[axis])
        for node in self.nodes:
            self._hand_on(node, inside, editor)

    def _constant(
        self,
        node: ir.Node,
        index: int,
        value: ir.Value,
        inverse: tuple[int, ...],
        editor: edit.Editor,
    ) -> None:
        array = edit.const_array(value)
        if array is None or array.size == 1:
            return
        full = array.reshape((1,) * (len(inverse) - array.ndim) + array.shape)
        turned = np.ascontiguousarray(np.transpose(full, inverse))
        node.replace_input_with(index, editor.constant(f"{value.name}_transposed", turned))

    def _hand_on(self, node: ir.Node, inside: set[ir.Node], editor: edit.Editor) -> None:
        value = node.outputs[0]
        shape = dims(value.shape)
        readers = [(user, index) for user, index in value.uses() if user not in inside]
        others = [
            (user, index)
            for user, index in readers
            if not (_is_transpose(user) and user.graph is self.graph)
        ]
        if others or value.is_graph_output():
            back = editor.node(
                "Transpose", [value], {"perm": self.perm}, name=f"{node.name}_order"
            )
            back.outputs[0].type, back.outputs[0].shape = value.type, value.shape
            edit.insert_after(node, back)
            for user, index in others:
                user.replace_input_with(index, back.outputs[0])
            if value.is_graph_output():
                _give_output(value, back.outputs[0])
        for user, _ in readers:
            if (user, 0) in others or user.graph is None:
                continue
            joined = self._joined(user)
            if joined != tuple(range(len(joined))):
                user.attributes["perm"] = ir.AttrInt64s("perm", joined)
            elif forward(user.outputs[0], value):
                remove(user)
            else:
                user.attributes["perm"] = ir.AttrInt64s("perm", joined)
        if shape is not None:
            inverse = np.argsort(self.perm)
            value.shape = ir.Shape([shape[axis] for axis in inverse])


def _give_output(value: ir.Value, back: ir.Value) -> None:
    """Let the Transpose make the graph's output under its name."""
    name = value.name
    graph = value.graph
    if graph is None:
        return
    value.name = f"{name}_before"
    back.name = name
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = back


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and not node.domain


def _undone(node: ir.Node) -> int:
    """Take out a Transpose that undoes the one it reads."""
    before = maker(node.inputs[0], "Transpose")
    one, two = (permutation(n) if n is not None else None for n in (before, node))
    if before is None or one is None or two is None or before.inputs[0] is None:
        return 0
    if [one[axis] for axis in two] != list(range(len(one))):
        return 0
    if not forward(node.outputs[0], before.inputs[0]):
        return 0
    remove(node)
    return 1


def _grow(first: ir.Node) -> _Region | None:
    perm, graph = permutation(first), first.graph
    if perm is None or not isinstance(graph, ir.Graph) or perm == tuple(range(len(perm))):
        return None
    region = _Region(perm, graph, {first: None})
    waiting = [first]
    while waiting:
        for user, _ in list(waiting.pop(0).outputs[0].uses()):
            if user in region.nodes or not _joins(user, region):
                continue
            region.nodes[user] = None
            waiting.append(user)
    return _settled(region)


def _settled(region: _Region) -> _Region:
    """Keep the nodes whose other operands are at home in the region; collect its sources."""
    while True:
        kept = {node: None for node in region.nodes if _at_home(node, region)}
        if len(kept) == len(region.nodes):
            break
        region.nodes = kept
    region.sources = {
        source: None
        for node in region.nodes
        for index in _operands(node)
        if (source := maker(node.inputs[index], "Transpose")) is not None
        and permutation(source) == region.perm
    }
    order = {node: place for place, node in enumerate(region.graph)}
    region.nodes = dict.fromkeys(sorted(region.nodes, key=order.__getitem__))
    return region


def _operands(node: ir.Node) -> range:
    """Return the inputs that have the axes of the result."""
    return range(len(node.inputs)) if node.op_type in ELEMENTWISE else range(1)


def _joins(node: ir.Node, region: _Region) -> bool:
    if node.domain or node.graph is not region.graph or len(node.outputs) != 1:
        return False
    if node.op_type not in UNARY | _ALONG | ELEMENTWISE:
        return False
    shape = dims(node.outputs[0].shape)
    return shape is not None and len(shape) == len(region.perm)


def _at_home(node: ir.Node, region: _Region) -> bool:
    for index in _operands(node):
        value = node.inputs[index]
        if value is None:
            return False
        source = value.producer()
        if source is not None and source in region.nodes:
            continue
        turns = source is not None and _is_transpose(source) and source.graph is region.graph
        if turns and source is not None and permutation(source) == region.perm:
            continue
        tensor = edit.const_tensor(value)
        if tensor is None or overridable(value) or len(tensor.shape) > len(region.perm):
            return False
        if tensor.size != 1 and tensor.nbytes > _LARGEST:
            return False
    return True


_LARGEST = 1 << 20
"""Bytes up to which a constant is stored a second time in another order."""
