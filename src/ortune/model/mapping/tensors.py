"""Which value of the source model each tensor of an executed graph carries.

A runtime keeps the name of a tensor that survives, mostly the last of a fused group, and some of
the name of a node. The rest follows from what is around it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import onnx_ir as ir

from ortune.core.session import Executed, Recorded
from ortune.model.analysis.dataflow import Origin

ADDED = {
    "ReorderInput": "reorder",
    "ReorderOutput": "reorder",
    "Reorder": "reorder",
    "MemcpyToHost": "copy",
    "MemcpyFromHost": "copy",
    "Transpose": "transpose",
    "Cast": "cast",
    "Convert": "cast",
    "QuantizeLinear": "quantize",
    "DequantizeLinear": "quantize",
    "FakeQuantize": "quantize",
    "Squeeze": "shape",
    "Unsqueeze": "shape",
    "Reshape": "shape",
}
"""What a runtime adds on its own, by operator: it forwards its first input in another form."""

TAIL = re.compile(
    r"(_nchwc|_token_\d+|/duplicated(_token_\d+)?|_transformed|_quant|/WithoutBiases"
    r"|[/_]+\w*Fusion\w*/?)$"
)
"""What onnxruntime appends to the name of a node, or of the tensor that a node stands for."""
_FAMILIES = (
    ("Conv", {"Conv", "ConvInteger", "ConvTranspose"}),
    ("MatMul", {"MatMul", "MatMulInteger", "Gemm"}),
    ("Gemm", {"Gemm", "MatMul"}),
    ("FullyConnected", {"Gemm", "MatMul"}),
    ("Pool", {"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean"}),
)
_ELEMENTWISE_TEXT = (
    "Add Sub Mul Div Sum Relu LeakyRelu PRelu Elu Clip Sigmoid HardSigmoid Tanh Gelu HardSwish "
    "BatchNormalization QuantizeLinear DequantizeLinear Dropout Cast Softplus"
)
_ELEMENTWISE = frozenset(_ELEMENTWISE_TEXT.split())
"""What is fused behind a kernel."""


class TensorSources:
    """The source values of the tensors of an executed graph, as far as they can be found.

    Attributes:
        source: Executed tensor -> value of the source model.
        same: Value of the source model -> the one that stands for all that are equal to it.
        taken: Executed node's name -> the source node that its name refers to.
        readers: Executed tensor -> executed nodes that read it.
    """

    def __init__(self, origin: Origin, recorded: Recorded) -> None:
        self._origin = origin
        nodes = recorded.nodes
        written = {name for node in nodes for name in node.writes if name}
        kept = written | set(recorded.constants)
        self.same = origin.same(kept)
        self.source: dict[str, str] = {}
        self._exact: set[str] = set()
        for name in kept | {n for one in nodes for n in one.reads}:
            if name in self.same:
                self.source[name] = self.same[name]
                self._exact.add(self.same[name])
        self.readers: dict[str, list[Executed]] = defaultdict(list)
        for node in nodes:
            for name in node.reads:
                self.readers[name].append(node)
        self.taken = self._stems(nodes)
        self._named = set(self.taken.values())
        self._through_reorders(nodes)
        for node in nodes:
            self._by_name(node)
        for node in reversed(nodes):
            self._by_reader(node)
        for node in nodes:
            self._by_passing(node)

    def _stems(self, nodes: Sequence[Executed]) -> dict[str, str]:
        """Return executed node's name -> the source node that its name refers to."""
        found: dict[str, str] = {}
        for node in nodes:
            for stem in _stems(node):
                if stem in self._origin.nodes and _fits(node, self._origin.nodes[stem]):
                    found[node.name] = stem
                    break
                if stem in self._origin.maker:
                    found[node.name] = self._origin.maker[stem]
                    break
        return found

    def _through_reorders(self, nodes: Sequence[Executed]) -> None:
        """A reordered tensor has the name that its source lost."""
        for node in reversed(nodes):
            if ADDED.get(node.op_type) in ("reorder", "copy") and node.reads and node.writes:
                value = self.source.get(node.writes[0])
                if value is not None and node.reads[0] not in self.source:
                    self.source[node.reads[0]] = value

    def _open(self, node: Executed) -> list[str]:
        return [name for name in node.writes if name and name not in self.source]

    def _by_name(self, node: Executed) -> None:
        """Take the source from the node's name, and go on to what is fused behind it."""
        left = self._open(node)
        if not left:
            return
        for known in reversed(node.known):
            if known in self._origin.nodes and self._origin.outputs[known]:
                self._put(node, self._origin.outputs[known])
                return
        stems = _stems(node)
        for stem in stems:
            value = self.same.get(stem)
            if value is not None and stem in self._origin.maker and node.name != stem:
                self.source[left[0]] = self._forward(node, value)
                return
        source = self.taken.get(node.name)
        if source is not None and _fits(node, self._origin.nodes[source]):
            self._put(node, self._origin.outputs[source])

    def _put(self, node: Executed, values: Sequence[str]) -> None:
        values = [self.same.get(value, value) for value in values]
        if len(values) == 1:
            values = [self._forward(node, values[0])]
        for name, value in zip([n for n in node.writes if n], values, strict=False):
            self.source.setdefault(name, value)

    def _forward(self, node: Executed, value: str) -> str:
        """Follow element-wise nodes fused behind a value that no other kernel stands for."""
        read = {self.source.get(name, "") for name in node.reads}
        quantized = "Q" in node.op_type or "Integer" in node.op_type
        stopped = {"DequantizeLinear"} if quantized else {"QuantizeLinear", "DequantizeLinear"}
        while True:
            readers = [r for r in self._origin.readers[value] if r in self._origin.nodes]
            if len(readers) != 1 or value in self._origin.results:
                return value
            reader = readers[0]
            source = self._origin.nodes[reader]
            made = self._origin.outputs[reader]
            if source.op_type not in _ELEMENTWISE or source.op_type in stopped or len(made) != 1:
                return value
            after = self.same.get(made[0], made[0])
            others = [v for v in self._origin.inputs[reader] if self.same.get(v, v) != value]
            others = [v for v in others if v not in self._origin.constant]
            if reader in self._named or after in self._exact or after == value:
                return value
            if any(self.same.get(v, v) not in read for v in others):
                return value
            value = after
            if source.op_type == "QuantizeLinear":
                return value

    def _by_reader(self, node: Executed) -> None:
        """Find the source as what a reader's own source node reads."""
        for name in self._open(node):
            if ADDED.get(node.op_type) and node.name not in self.taken:
                continue
            for reader in self.readers[name]:
                value = self._read_by(reader, name)
                if value is not None:
                    self.source[name] = value
                    break

    def _read_by(self, reader: Executed, name: str) -> str | None:
        outs = [self.source[w] for w in reader.writes if w in self.source]
        if not outs:
            return None
        if ADDED.get(reader.op_type) in ("reorder", "copy"):
            return outs[0]
        stop = set(self.source.values())
        nodes, _ = self._origin.cone(outs[0], stop - {outs[0]}, self.same)
        family = _family(reader.op_type)
        index = list(reader.reads).index(name)
        for source in nodes:
            if self._origin.nodes[source].op_type not in family:
                continue
            inputs = [self.same.get(v, v) for v in self._origin.inputs[source]]
            free = [v for v in inputs if v not in stop and v not in self._origin.constant]
            if index < len(inputs) and inputs[index] in free:
                return inputs[index]
            if free:
                return free[0]
        return None

    def _by_passing(self, node: Executed) -> None:
        """What was added forwards what it reads."""
        if node.op_type in ADDED and node.reads:
            value = self.source.get(node.reads[0])
            for name in self._open(node):
                if value is not None:
                    self.source[name] = value


def _stems(node: Executed) -> list[str]:
    """Return the name, then what is left of it without what the runtime appended."""
    stems = [node.name]
    while (shorter := TAIL.sub("", stems[-1])) != stems[-1] and shorter:
        stems.append(shorter)
    if node.op_type in ADDED and ADDED[node.op_type] != "quantize":
        return stems[:1]
    return stems


def _family(op_type: str) -> set[str]:
    """Return the ONNX operators that a runtime's operator may stand for."""
    found = {op_type, op_type.removeprefix("Fused"), op_type.removeprefix("QLinear")}
    for part, members in _FAMILIES:
        if part in op_type:
            found |= members
    return found


def _fits(node: Executed, source: ir.Node) -> bool:
    """Whether a node of this name may be the source: added ones need the operator itself."""
    if node.op_type in ADDED:
        return source.op_type == node.op_type or bool(node.known)
    return True
