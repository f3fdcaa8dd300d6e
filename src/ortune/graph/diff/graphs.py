"""The nodes and values of two models, numbered through: the first's, then the second's."""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core import wording
from ortune.graph.diff.weights import Constant, digest_tensor
from ortune.graph.ir import edit, match
from ortune.graph.mapping.nodes import TAIL

PASSED_ON = frozenset({"Identity", "Dropout"})
"""What forwards its first input as it is."""
QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min", "Mean"})
_VARIANTS = {
    "Conv": "ConvInteger",
    "MatMul": "MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits MatMulFpQ4 "
    "FusedMatMul TransposeMatMul Gemm QGemm FusedGemm",
    "LSTM": "DynamicQuantizeLSTM",
    "LayerNormalization": "SkipLayerNormalization EmbedLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization SimplifiedLayerNormalization",
    "Gelu": "BiasGelu FastGelu",
    "Softmax": "BiasSoftmax",
    "MaxPool": "NhwcMaxPool",
    "Gather": "GatherBlockQuantized",
    "Attention": "QAttention MultiHeadAttention",
}
_ROLES = {variant: op for op, variants in _VARIANTS.items() for variant in variants.split()}
_MEANINGLESS = frozenset({"kernel_shape", "channels_last"})
"""Attributes that the weights' shape tells anyway."""
_LONG = 8
_OTHER_TYPE = frozenset(
    {"If", "Loop", "Scan", "Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Equal", "Less",
     "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "IsNaN"}
)  # fmt: skip


class Graphs:
    """Two models with unique names (`ortune.graph.io.names.make_names_unique`) and functions
    inlined.

    Nodes are numbered in the order of the file, a body behind the node that holds it; values in
    the order in which they are met.
    """

    def __init__(self, a: ir.Model, b: ir.Model) -> None:
        # By node:
        self.nodes: list[ir.Node] = []
        self.op: list[str] = []  # other domains as ``com.microsoft::Gelu``
        self.role: list[str] = []  # without what a runtime adds: ``Conv`` of ``FusedConv``
        # Attribute -> text; what is ONNX' default is left out, bodies are too.
        self.settings: list[dict[str, str]] = []
        self.reads: list[tuple[int, ...]] = []  # values, -1 where one is left out
        self.writes: list[tuple[int, ...]] = []  # likewise
        self.captured: list[tuple[int, ...]] = []  # what its bodies read outside, their results
        self.bodies: dict[int, dict[str, ir.Graph]] = {}  # attribute -> body
        self.scope: list[int] = []  # the node whose body holds it, -1 on top
        self.shapely: list[bool] = []  # it computes integers from shapes and constants alone
        # By value:
        self.number: dict[ir.Value, int] = {}
        self.names: list[str] = []
        self.maker: list[int] = []  # a node, -1 for inputs and initializers
        self.users: list[list[int]] = []  # nodes that read it
        self.fixed: list[bool] = []  # it depends on constants alone
        self.dtype: list[ir.DataType | None] = []  # as far as it is known
        self.constants: dict[int, Constant] = {}  # the stored tensor behind it
        # By model:
        self.inputs: list[list[int]] = []
        self.results: list[list[int]] = []
        for model in (a, b):
            self.first = len(self.nodes)  # in the end, number of the second model's first node
            self._first_value = len(self.names)
            opset = model.opset_imports.get("", 1)
            inputs = [value for value in model.graph.inputs if not value.is_initializer()]
            self.inputs.append([self._number_value(value) for value in inputs])
            self._add_graph(model.graph, -1, opset)
            self.results.append([self._number_value(value) for value in model.graph.outputs])
        # The names that a runtime took values over from, empty for made-up ones: tensors in
        # another layout get the name of what they carry.
        self.labels = list(self.names)
        for at in reversed(range(len(self.nodes))):
            outputs, name = self.writes[at][:1], str(self.nodes[at].name)
            if not self.op[at].startswith("com.microsoft") or not outputs or outputs[0] < 0:
                continue
            source = self.reads[at][0] if self.reads[at] else -1
            if self.role[at] == "ReorderOutput" and self.maker[source] >= 0:
                self.labels[source] = self.labels[outputs[0]]
            if self.role[at] in ("ReorderInput", "ReorderOutput"):
                self.labels[outputs[0]] = ""
            elif (stem := TAIL.sub("", name)) != name:
                self.labels[outputs[0]] = stem
            elif "reorder" in self.labels[outputs[0]]:
                self.labels[outputs[0]] = ""

    def side_of_node(self, node: int) -> int:
        """Return which model a node is of: 0 or 1."""
        return int(node >= self.first)

    def side_of_value(self, value: int) -> int:
        """Return which model a value is of: 0 or 1."""
        return int(value >= self._first_value)

    def list_nodes(self, which: int) -> range:
        """Return the nodes of one model."""
        return range(self.first, len(self.nodes)) if which else range(self.first)

    def list_data(self, node: int) -> list[int]:
        """Return the values that a node reads, and its bodies from outside, without constants."""
        values = (*self.reads[node], *self.captured[node])
        return [value for value in values if value >= 0 and not self.fixed[value]]

    def list_producers(self, node: int) -> list[int]:
        """Return the nodes that make what a node reads; constants are left out."""
        makers = [self.maker[value] for value in self.list_data(node)]
        return [maker for maker in makers if maker >= 0 and maker != node]

    def list_consumers(self, node: int) -> list[int]:
        """Return the nodes that read what a node makes."""
        return [user for value in self.list_written_values(node) for user in self.users[value]]

    def list_written_values(self, node: int) -> list[int]:
        """Return the values that a node makes."""
        return [value for value in self.writes[node] if value >= 0]

    def is_constant(self, node: int) -> bool:
        """Say whether a node makes constants from constants."""
        return any(self.fixed[value] for value in self.list_written_values(node))

    def is_blocked(self, node: int) -> bool:
        """Say whether a node's weights are padded to blocks of channels."""
        return self.op[node].startswith("com.microsoft.nchwc")

    def compute_layers(self) -> list[int]:
        """Return for every node the longest way from an input, in nodes."""
        layers = [0] * len(self.nodes)
        for node in range(len(self.nodes)):
            earlier = [layers[p] + 1 for p in self.list_producers(node) if p < node]
            inside = [layers[self.scope[node]]] if self.scope[node] >= 0 else []
            layers[node] = max([*earlier, *inside], default=0)
        return layers

    def find_live_nodes(self) -> set[int]:
        """Return the nodes that an output depends on, with all that is in their bodies."""
        live: set[int] = set()
        pending = [self.maker[value] for results in self.results for value in results]
        for node in pending:
            if node >= 0 and node not in live:
                live.add(node)
                values = (*self.reads[node], *self.captured[node])
                pending += [self.maker[value] for value in values if value >= 0]
        for node, holder in enumerate(self.scope):
            if holder in live:
                live.add(node)
        return live

    def _number_value(self, value: ir.Value | None) -> int:
        if value is None:
            return -1
        number = self.number.setdefault(value, len(self.names))
        if number == len(self.names):
            self.names.append(str(value.name or ""))
            self.maker.append(-1)
            self.users.append([])
            self.fixed.append(value.is_initializer())
            self.dtype.append(value.dtype)
            if value.is_initializer() and value.const_value is not None:
                self._store_constant(number, Constant(str(value.name), value.const_value))
        return number

    def _store_constant(self, value: int, constant: Constant) -> None:
        self.constants[value] = constant
        if constant.scale is None:
            self.dtype[value] = self.dtype[value] or constant.tensor.dtype

    def _add_graph(self, graph: ir.Graph, holder: int, opset: int) -> None:
        for value in (*graph.inputs, *graph.initializers.values()):
            self._number_value(value)
        for node in graph:
            self._add_node(node, holder, opset)

    def _add_node(self, node: ir.Node, holder: int, opset: int) -> None:
        at = len(self.nodes)
        self.nodes.append(node)
        self.op.append(match.qualify_operator(node))
        self.role.append(find_base_operator(node.op_type))
        self.settings.append(format_attributes(node, opset))
        self.scope.append(holder)
        self.captured.append(())
        self.reads.append(tuple(self._number_value(value) for value in node.inputs))
        writes = (self._number_value(v) if v.name or v.uses() else -1 for v in node.outputs)
        self.writes.append(tuple(writes))
        inputs = [value for value in self.reads[at] if value >= 0]
        for value in inputs:
            self.users[value].append(at)
        bodies = {
            name: attribute.as_graph()
            for name, attribute in node.attributes.items()
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH
        }
        varies = node.op_type in match.RANDOM or not (node.inputs or node.op_type == "Constant")
        fixed = not bodies and not varies and all(self.fixed[value] for value in inputs)
        self.shapely.append(not bodies and (fixed or self._is_shape_arithmetic(node, inputs)))
        for value in self.list_written_values(at):
            self.maker[value], self.fixed[value] = at, fixed
            self.dtype[value] = self.dtype[value] or self._infer_type(node, inputs)
        if fixed and not node.domain and self.list_written_values(at):
            self._pass_on(at, node)
        if bodies:
            self.bodies[at] = bodies
            first = len(self.nodes)
            for graph in bodies.values():
                self._add_graph(graph, at, opset)
            results = [self._number_value(value) for g in bodies.values() for value in g.outputs]
            read = [v for n in range(first, len(self.nodes)) for v in self.reads[n] if v >= 0]
            outside = [value for value in read if self.maker[value] < first]
            inside = [value for value in results if self.maker[value] >= first]
            self.captured[at] = tuple(dict.fromkeys([*outside, *inside]))

    def _is_shape_arithmetic(self, node: ir.Node, inputs: Sequence[int]) -> bool:
        if node.op_type in ("Shape", "Size") and not node.domain:
            return True
        makers = [self.maker[value] for value in inputs if not self.fixed[value]]
        return bool(makers) and all(m >= 0 and self.shapely[m] for m in makers)

    def _infer_type(self, node: ir.Node, inputs: Sequence[int]) -> ir.DataType | None:
        """Return the type of what is computed in the type of an input."""
        index = {"DequantizeLinear": 1, "Where": 1, "QuantizeLinear": 2}.get(node.op_type, 0)
        if node.op_type == "Cast":
            return ir.DataType(edit.read_attribute(node, "to", 0))
        if node.domain or node.op_type in _OTHER_TYPE or len(inputs) <= index:
            return None
        return self.dtype[inputs[index]]

    def _pass_on(self, at: int, node: ir.Node) -> None:
        """Note the tensor behind a constant that a node only forwards in another form."""
        out = self.writes[at][0]
        if out < 0:
            return
        if node.op_type == "Constant":
            tensor = edit.const_tensor(node.outputs[0])
            if tensor is not None:
                self._store_constant(out, Constant(self.names[out], tensor))
            return
        read = [self.constants.get(value) for value in (*self.reads[at], -1, -1)]
        source, second, third = read[:3]
        if source is None:
            return
        if node.op_type in ("Identity", "Cast"):
            self.constants[out] = source
        elif node.op_type == "Transpose" and source.order is None:
            rank = len(source.tensor.shape)
            order = edit.read_attribute(node, "perm", None) or tuple(reversed(range(rank)))
            self.constants[out] = replace(source, order=tuple(int(axis) for axis in order))
        elif node.op_type == "DequantizeLinear" and source.order is None and second is not None:
            axis = int(edit.read_attribute(node, "axis", 1))
            zero = third.tensor if third is not None else None
            self.constants[out] = Constant(source.name, source.tensor, second.tensor, zero, axis)
        elif node.op_type == "Mul" and second is not None:
            for constant, scale in ((source, second), (second, source)):
                if not constant.floating and scale.floating:
                    last = max(0, len(constant.shape) - 1)
                    self.constants[out] = replace(constant, scale=scale.tensor, axis=last)


def match_in_order(
    first: Sequence[int], second: Sequence[int], name: Callable[[int], str | None]
) -> Iterator[tuple[int, int]]:
    """Yield what of two lists stands for each other: of one name, then of one place."""
    by_name = {name(item): item for item in second}
    named = {item: by_name[name(item)] for item in first if name(item) in by_name}
    yield from named.items()
    matched = set(named.values())
    unmatched = [item for item in second if item not in matched]
    yield from zip([item for item in first if item not in named], unmatched, strict=False)


def find_base_operator(op_type: str) -> str:
    """Return the operator of ONNX that a runtime's operator is a variant of."""
    operator = _ROLES.get(op_type)
    if operator is None:
        for start in ("QLinear", "Fused", "Nhwc"):
            if op_type.startswith(start) and len(op_type) > len(start):
                return find_base_operator(op_type.removeprefix(start))
    return operator or op_type


def is_integer_operator(op: str) -> bool:
    """Say whether an operator takes integers for numbers: Q/DQ are a part of it."""
    name = op.rpartition("::")[2]
    return name.startswith(("QLinear", "QGemm", "QAttention", "DynamicQuantize")) or name in (
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "GatherBlockQuantized",
    )


def format_attributes(node: ir.Node, opset: int) -> dict[str, str]:
    """Return attribute -> text without bodies, ONNX' defaults and what the weights' shape says."""
    usual = _load_defaults(node.op_type, opset) if not node.domain else {}
    texts = {}
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref() or name in _MEANINGLESS:
            continue
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        text = _format_attribute(attribute)
        if usual.get(name) != text and not _is_default(name, attribute.value):
            texts[name] = text
    return texts


def _format_attribute(attribute: ir.Attr) -> str:
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return f"tensor {digest_tensor(value)}"
    if attribute.type == ir.AttributeType.FLOAT:
        return repr(float(np.float32(value)))
    if attribute.type == ir.AttributeType.FLOATS:
        return repr([float(np.float32(number)) for number in value])
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return repr(list(value))
    return repr(value)


def _is_default(name: str, value: Any) -> bool:
    """Say whether an attribute says what it would mean without it, whatever the rank."""
    match name:
        case "strides" | "dilations":
            return bool(np.all(np.asarray(value) == 1))
        case "pads" | "output_padding":
            return not np.any(value)
        case "auto_pad":
            return bool(value == "NOTSET")
        case _:
            return False


@functools.cache
def _load_defaults(op_type: str, opset: int) -> dict[str, str]:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return {}
    defaults = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            default = ir.serde.deserialize_attribute(attribute.default_value)
            defaults[name] = _format_attribute(default)
    return defaults


def computation_digests(graphs: Graphs) -> tuple[dict[int, str], list[str]]:
    """Return digests of what each value and each node computes from the inputs, names apart."""
    digests = _ComputationDigests(graphs)
    first, second = graphs.inputs
    for index, pair in enumerate(match_in_order(first, second, graphs.names.__getitem__)):
        digests.values |= dict.fromkeys(pair, f"input {index}")
    waiting: list[int] = []
    for node in range(len(graphs.nodes)):
        while waiting and graphs.scope[node] != waiting[-1]:
            digests.finish_node(waiting.pop())
        if node in graphs.bodies:
            waiting.append(node)
            digests.start_bodies(node)
        else:
            digests.finish_node(node)
    for node in reversed(waiting):
        digests.finish_node(node)
    return digests.values, digests.nodes


class _ComputationDigests:
    """Digests of values and nodes, filled node by node in the order of execution."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._bodies: dict[ir.Graph, str] = {}
        self.values: dict[int, str] = {}  # of the computation behind each
        self.nodes = [""] * len(graphs.nodes)  # empty until a node is finished

    def start_bodies(self, node: int) -> None:
        """Digest the bodies of a control-flow node, and the inputs of these."""
        for name, body in self._graphs.bodies[node].items():
            self._bodies[body] = _digest_parts((*self._list_parts(node), name))
            for index, value in enumerate(body.inputs):
                self.values[self._graphs.number[value]] = f"{self._bodies[body]} {index}"

    def finish_node(self, node: int) -> None:
        """Digest a node, its bodies finished, and what it writes."""
        graphs = self._graphs
        inside = graphs.bodies.get(node, {}).values()
        results = [self._digest_value(graphs.number[value]) for b in inside for value in b.outputs]
        text = _digest_parts((*self._list_parts(node), *results))
        graph = graphs.nodes[node].graph
        around = self._bodies.get(graph) if isinstance(graph, ir.Graph) else None
        self.nodes[node] = _digest_parts((text, around)) if around else text
        for slot, value in enumerate(graphs.writes[node]):
            if graphs.op[node] == "Constant" and value in graphs.constants:
                self._digest_value(value)
            elif value >= 0:
                self.values[value] = f"{text} {slot}"
        if graphs.op[node] in PASSED_ON and graphs.reads[node] and graphs.writes[node][0] >= 0:
            self.values[graphs.writes[node][0]] = self._digest_value(graphs.reads[node][0])

    def _list_parts(self, node: int) -> list[str]:
        """Return operator, attributes and digests of the inputs; those of a sum sorted."""
        graphs = self._graphs
        read = [self._digest_value(value) for value in graphs.reads[node]]
        attributes = [f"{key}={text}" for key, text in graphs.settings[node].items()]
        if graphs.op[node] in COMMUTATIVE:
            read.sort()
        return [graphs.op[node], *attributes, *read]

    def _digest_value(self, value: int) -> str:
        if value >= 0 and value not in self.values:
            graphs = self._graphs
            constant = graphs.constants.get(value)
            unknown = f"{graphs.side_of_value(value)} {graphs.names[value]}"
            self.values[value] = f"constant {constant.digest}" if constant is not None else unknown
        return self.values.get(value, "")


def _digest_parts(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def spell_operators(graphs: Graphs, nodes: Sequence[int]) -> str:
    """Write the operators of a group, long ones by number."""
    ops = [graphs.op[node].rpartition("::")[2] for node in nodes]
    if len(ops) <= _LONG:
        return "+".join(ops)
    counted = Counter(ops).most_common()
    shown = [f"{count} {op}" if count > 1 else op for op, count in counted[:_LONG]]
    more = len(counted) - len(shown)
    return "+".join(shown) + (
        f"+{wording.format_count(more, 'more operator')}" if more > 0 else ""
    )
