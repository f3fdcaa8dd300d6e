"""One of two models that are set beside each other: nodes and values by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortune.model.diff.attributes import settings
from ortune.model.diff.operators import role
from ortune.model.diff.weights import Held
from ortune.model.graph import edit
from ortune.model.mapping.tensors import TAIL

_INTEGERS = frozenset({"Shape", "Size", "NonZero", "ArgMax", "ArgMin"})
_BOOLS = frozenset(
    {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "IsNaN"}
)


class Side:
    """A model with unique names (`ortune.model.io.names.unique`) and local functions inlined.

    Nodes are numbered in the order of the file, a body behind the node that holds it; values in
    the order in which they are met.

    Attributes:
        nodes: The nodes.
        op: Node -> operator, other domains as ``com.microsoft::Gelu``.
        role: Node -> operator without what a runtime's variant adds: ``Conv`` of ``FusedConv``.
        said: Node -> attribute -> text; what is ONNX' default is left out, bodies are too.
        reads: Node -> values, -1 where one is left out.
        writes: Node -> values, -1 where one is left out.
        captured: Node -> values that its bodies read from outside, and results of the bodies.
        scope: Node -> the node whose body holds it, -1 on top.
        names: Value -> name.
        labels: Value -> the name that a runtime took it over from; empty for made-up names.
        values: Value -> as the model has it.
        maker: Value -> node, -1 for inputs and initializers.
        users: Value -> nodes and slots that read it.
        constant: Value -> it depends on constants alone.
        shapely: Node -> it computes integers from shapes and constants alone.
        held: Value -> the stored tensor behind it.
        inputs: Values of the inputs.
        results: Values of the outputs.
        dtype: Value -> NumPy-like name of its type as far as it is known.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes: list[ir.Node] = []
        self.op: list[str] = []
        self.role: list[str] = []
        self.said: list[dict[str, str]] = []
        self.reads: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        self.captured: list[tuple[int, ...]] = []
        self.scope: list[int] = []
        self.names: list[str] = []
        self.values: list[ir.Value] = []
        self.maker: list[int] = []
        self.users: list[list[tuple[int, int]]] = []
        self.constant: list[bool] = []
        self.shapely: list[bool] = []
        self.dtype: list[str] = []
        self.held: dict[int, Held] = {}
        self.body: dict[int, dict[str, ir.Graph]] = {}
        self._number: dict[ir.Value, int] = {}
        self._opset = model.opset_imports.get("", 1)
        self.inputs = [self._of(v) for v in model.graph.inputs if not v.is_initializer()]
        self._walk(model.graph, -1)
        self.results = [self._of(value) for value in model.graph.outputs]
        self.labels = list(self.names)
        self._label()

    def number(self, value: ir.Value) -> int:
        """Return the number of a value of the model."""
        return self._number[value]

    def _of(self, value: ir.Value | None) -> int:
        if value is None:
            return -1
        found = self._number.get(value)
        if found is not None:
            return found
        number = self._number[value] = len(self.values)
        self.values.append(value)
        self.names.append(str(value.name or ""))
        self.maker.append(-1)
        self.users.append([])
        self.constant.append(value.is_initializer())
        self.dtype.append(_kind(value.dtype))
        if value.is_initializer() and value.const_value is not None:
            self.held[number] = Held(str(value.name), value.const_value)
            self.dtype[number] = _kind(value.const_value.dtype)
        return number

    def _walk(self, graph: ir.Graph, holder: int) -> None:
        for value in graph.initializers.values():
            self._of(value)
        for node in graph:
            self._add(node, holder)

    def _add(self, node: ir.Node, holder: int) -> None:
        at = len(self.nodes)
        self.nodes.append(node)
        self.op.append(f"{node.domain}::{node.op_type}" if node.domain else node.op_type)
        self.role.append(role(node.op_type))
        self.said.append(settings(node, self._opset))
        self.scope.append(holder)
        self.reads.append(tuple(self._of(value) for value in node.inputs))
        made = tuple(self._of(v) if v.name or v.uses() else -1 for v in node.outputs)
        self.writes.append(made)
        for slot, value in enumerate(self.reads[at]):
            if value >= 0:
                self.users[value].append((at, slot))
        for value in made:
            if value >= 0:
                self.maker[value] = at
        known = [value for value in self.reads[at] if value >= 0]
        bodies = _bodies(node)
        fixed = not bodies and all(self.constant[value] for value in known) and _fixed(node)
        self.shapely.append(not bodies and (fixed or self._counts(node, known)))
        for value in made:
            if value >= 0:
                self.constant[value] = fixed
                self.dtype[value] = self.dtype[value] or self._typed(node, known)
        if fixed:
            self._hold(at, node)
        self.captured.append(())
        if bodies:
            self.body[at] = bodies
            first = len(self.nodes)
            for graph in bodies.values():
                for given in graph.inputs:
                    self._of(given)
                self._walk(graph, at)
            results = [self._of(value) for graph in bodies.values() for value in graph.outputs]
            inside = range(first, len(self.nodes))
            outer = [v for n in inside for v in self.reads[n] if v >= 0]
            self.captured[at] = tuple(
                dict.fromkeys(
                    [v for v in outer if not first <= self.maker[v]]
                    + [v for v in results if self.maker[v] >= first]
                )
            )

    def _label(self) -> None:
        """Give tensors in another layout the name of what they carry."""
        for at in reversed(range(len(self.nodes))):
            made, name = self.writes[at][:1], str(self.nodes[at].name)
            if not self.op[at].startswith("com.microsoft") or not made or made[0] < 0:
                continue
            if self.role[at] in ("ReorderInput", "ReorderOutput"):
                source = self.reads[at][0]
                if self.role[at] == "ReorderOutput" and self.maker[source] >= 0:
                    self.labels[source] = self.labels[made[0]]
                self.labels[made[0]] = ""
            elif (stem := TAIL.sub("", name)) != name:
                self.labels[made[0]] = stem
            elif "reorder" in self.labels[made[0]]:
                self.labels[made[0]] = ""

    def _counts(self, node: ir.Node, known: Sequence[int]) -> bool:
        if node.op_type in ("Shape", "Size") and not node.domain:
            return True
        makers = [self.maker[value] for value in known if not self.constant[value]]
        return bool(makers) and all(m >= 0 and self.shapely[m] for m in makers)

    def _typed(self, node: ir.Node, known: Sequence[int]) -> str:
        op = node.op_type
        if node.domain or op in ("If", "Loop", "Scan"):
            return ""
        if op == "Cast":
            return _kind(ir.DataType(edit.attribute(node, "to", 0)))
        if op in _INTEGERS:
            return "int64"
        if op in _BOOLS:
            return "bool"
        if op == "QuantizeLinear":
            return self.dtype[known[2]] if len(known) > 2 else "uint8"
        if op in ("DequantizeLinear", "Where"):
            return self.dtype[known[1]] if len(known) > 1 else ""
        return self.dtype[known[0]] if known else ""

    def _hold(self, at: int, node: ir.Node) -> None:
        """Remember the tensor behind a constant that is only handed on."""
        out = self.writes[at][0] if self.writes[at] else -1
        if out < 0 or node.domain:
            return
        if node.op_type == "Constant":
            tensor = edit.const_tensor(node.outputs[0])
            if tensor is not None:
                self.held[out] = Held(self.names[out], tensor)
                self.dtype[out] = _kind(tensor.dtype)
            return
        source = self.held.get(self.reads[at][0]) if self.reads[at] else None
        if source is None:
            return
        if node.op_type in ("Identity", "Cast"):
            self.held[out] = source
        elif node.op_type == "Transpose" and source.order is None:
            rank = len(source.tensor.shape)
            order = edit.attribute(node, "perm", None) or tuple(reversed(range(rank)))
            self.held[out] = Held(
                source.name,
                source.tensor,
                source.scale,
                source.zero,
                source.axis,
                tuple(int(axis) for axis in order),
            )
        elif node.op_type == "Mul":
            self._scaled(out, *(self.held.get(value) for value in self.reads[at]))
        elif node.op_type == "DequantizeLinear" and source.order is None:
            scale = self.held.get(self.reads[at][1])
            zero = self.held.get(self.reads[at][2]) if len(self.reads[at]) > 2 else None
            if scale is not None:
                self.held[out] = Held(
                    source.name,
                    source.tensor,
                    scale.tensor,
                    zero.tensor if zero is not None else None,
                    int(edit.attribute(node, "axis", 1)),
                )

    def _scaled(self, out: int, one: Held | None, two: Held | None) -> None:
        """Take integers times a scale for what they stand for."""
        for held, scale in ((one, two), (two, one)):
            whole = held is not None and not held.floating and held.scale is None
            if whole and scale is not None and held is not None and scale.floating:
                last = max(0, len(held.shape) - 1)
                self.held[out] = Held(held.name, held.tensor, scale.tensor, None, last)
                return

    def data(self, node: int) -> list[int]:
        """Return the values that a node reads, and its bodies from outside, without constants."""
        every = (*self.reads[node], *self.captured[node])
        return [value for value in every if value >= 0 and not self.constant[value]]

    def before(self, node: int) -> Iterator[int]:
        """Yield the nodes that make what a node reads; constants are left out."""
        for value in self.data(node):
            if self.maker[value] >= 0 and self.maker[value] != node:
                yield self.maker[value]

    def after(self, node: int) -> Iterator[int]:
        """Yield the nodes that read what a node makes."""
        for value in self.writes[node]:
            if value >= 0:
                for user, _ in self.users[value]:
                    yield user

    def fixed(self, node: int) -> bool:
        """Say whether a node makes constants from constants."""
        return any(value >= 0 and self.constant[value] for value in self.writes[node])

    def layers(self) -> list[int]:
        """Return for every node the longest way from an input, in nodes."""
        found = [0] * len(self.nodes)
        for node in range(len(self.nodes)):
            earlier = [found[one] + 1 for one in self.before(node) if one < node]
            inside = [found[self.scope[node]]] if self.scope[node] >= 0 else []
            found[node] = max([*earlier, *inside], default=0)
        return found

    def dead(self) -> set[int]:
        """Return the nodes that no output depends on."""
        live: set[int] = set()
        pending = [self.maker[value] for value in self.results]
        for node in pending:
            if node < 0 or node in live:
                continue
            live.add(node)
            values = (*self.reads[node], *self.captured[node])
            pending += [self.maker[value] for value in values if value >= 0]
        inside = {n for n in range(len(self.nodes)) if self._in(n, live)}
        return set(range(len(self.nodes))) - live - inside

    def _in(self, node: int, live: set[int]) -> bool:
        while (node := self.scope[node]) >= 0:
            if node in live:
                return True
        return False


def _bodies(node: ir.Node) -> dict[str, ir.Graph]:
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH
    }


def _fixed(node: ir.Node) -> bool:
    random = node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial")
    return not random and (bool(node.inputs) or node.op_type == "Constant")


def _kind(dtype: ir.DataType | None) -> str:
    return "" if dtype is None or dtype == ir.DataType.UNDEFINED else dtype.name.lower()
