"""Which nodes of a model each node of the executed graph stands for.

A runtime fuses, splits, renames and reorders. From the names that survive the values of the source
model that the executed tensors carry are found (`ortune.graph.mapping.nodes`); a kernel then
stands for the nodes between the source values of its inputs and those of its outputs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.session import Executed, IntegerUse, Recorded
from ortune.graph.analysis.dataflow import Origin
from ortune.graph.ir import edit, qdq

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


@dataclass(frozen=True)
class Lineage:
    """The way from executed nodes to source nodes."""

    # For every executed node the source nodes it stands for, in their order.
    sources: tuple[tuple[str, ...], ...]
    folded: tuple[str, ...]  # source nodes that no executed node stands for: constants, or removed
    # Source nodes put to the nearest executed node for want of a better clue.
    guessed: tuple[str, ...] = ()
    # Executed nodes that nothing tells of: they take what is behind those before.
    followed: tuple[str, ...] = ()


class TensorSources:
    """The source values of the tensors of an executed graph, as far as they can be found."""

    def __init__(self, origin: Origin, recorded: Recorded) -> None:
        self._origin = origin
        self._nodes, self._constants = recorded.nodes, set(recorded.constants)
        nodes = recorded.nodes
        written = {name for node in nodes for name in node.writes if name}
        kept = written | set(recorded.constants)
        self.same = origin.map_equal_values(kept)
        self.source: dict[str, str] = {}  # executed tensor -> value of the source model
        self._exact: set[str] = set()
        for name in kept | {n for executed in nodes for n in executed.reads}:
            if name in self.same:
                self.source[name] = self.same[name]
                self._exact.add(self.same[name])
        self.readers: dict[str, list[Executed]] = defaultdict(list)  # of executed tensors
        for node in nodes:
            for name in node.reads:
                self.readers[name].append(node)
        self.source_by_name = self._match_names(nodes)
        self._named = set(self.source_by_name.values())
        self._name_reordered(nodes)
        for node in nodes:
            self._by_name(node)
        for node in reversed(nodes):
            self._by_reader(node)
        # The outputs of nodes that the runtime added have the sources of what these read.
        for node in nodes:
            if node.op_type in ADDED and node.reads and node.reads[0] in self.source:
                for name in self._list_open_outputs(node):
                    self.source[name] = self.source[node.reads[0]]
        self._twins: dict[str, list[str]] = defaultdict(list)
        for value, stands in self.same.items():
            if value != stands and stands in origin.maker and value in origin.maker:
                self._twins[origin.maker[stands]].append(origin.maker[value])

    def _name_reordered(self, nodes: Sequence[Executed]) -> None:
        """Give the inputs of reordering nodes their sources: the output has its name."""
        for node in reversed(nodes):
            if ADDED.get(node.op_type) in ("reorder", "copy") and node.reads and node.writes:
                value = self.source.get(node.writes[0])
                if value is not None:
                    self.source.setdefault(node.reads[0], value)

    def _match_names(self, nodes: Sequence[Executed]) -> dict[str, str]:
        """Return executed node's name -> the source node that its name refers to."""
        matches: dict[str, str] = {}
        for node in nodes:
            for stem in _list_stems(node):
                if stem in self._origin.nodes and _is_candidate(node, self._origin.nodes[stem]):
                    matches[node.name] = stem
                    break
                if stem in self._origin.maker:
                    matches[node.name] = self._origin.maker[stem]
                    break
        return matches

    def _list_open_outputs(self, node: Executed) -> list[str]:
        return [name for name in node.writes if name and name not in self.source]

    def _by_name(self, node: Executed) -> None:
        """Take the source from the node's name, and go on to what is fused behind it."""
        open_outputs = self._list_open_outputs(node)
        if not open_outputs:
            return
        for name in reversed(node.known):
            if name in self._origin.nodes and self._origin.outputs[name]:
                self._set_sources(node, self._origin.outputs[name])
                return
        stems = _list_stems(node)
        for stem in stems:
            value = self.same.get(stem)
            if value is not None and stem in self._origin.maker and node.name != stem:
                self.source[open_outputs[0]] = self._follow_fused(node, value)
                return
        source = self.source_by_name.get(node.name)
        if source is not None and _is_candidate(node, self._origin.nodes[source]):
            self._set_sources(node, self._origin.outputs[source])

    def _set_sources(self, node: Executed, values: Sequence[str]) -> None:
        values = [self.same.get(value, value) for value in values]
        if len(values) == 1:
            values = [self._follow_fused(node, values[0])]
        for name, value in zip([n for n in node.writes if n], values, strict=False):
            self.source.setdefault(name, value)

    def _follow_fused(self, node: Executed, value: str) -> str:
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
            outputs = self._origin.outputs[reader]
            fuses = source.op_type in _ELEMENTWISE and source.op_type not in stopped
            if not fuses or len(outputs) != 1:
                return value
            after = self.same.get(outputs[0], outputs[0])
            operands = [v for v in self._origin.inputs[reader] if self.same.get(v, v) != value]
            operands = [v for v in operands if v not in self._origin.constant]
            if reader in self._named or after in self._exact or after == value:
                return value
            if any(self.same.get(v, v) not in read for v in operands):
                return value
            value = after
            if source.op_type == "QuantizeLinear":
                return value

    def _by_reader(self, node: Executed) -> None:
        """Find the source as what a reader's own source node reads."""
        for name in self._list_open_outputs(node):
            if ADDED.get(node.op_type) and node.name not in self.source_by_name:
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
        nodes, _ = self._origin.find_cone(outs[0], stop - {outs[0]}, self.same)
        op_type = reader.op_type
        family = {op_type, op_type.removeprefix("Fused"), op_type.removeprefix("QLinear")}
        for part, members in _FAMILIES:
            if part in op_type:
                family |= members
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

    def build_lineage(self) -> Lineage:
        """Return which source nodes each executed node stands for."""
        stop = set(self.source.values())
        assignments = [
            self._find_cone(node, stop) or self._find_following(node, stop) for node in self._nodes
        ]
        # Account for every source node: constants and the removed, and twins of others.
        origin = self._origin
        for sources in assignments:
            for name in list(sources):
                sources.update(dict.fromkeys(self._twins.get(name, ())))
        followed = self._assign_followers(assignments)
        claimed = {name for sources in assignments for name in sources}
        unclaimed = [name for name in origin.nodes if name not in claimed]
        folded = {n for n in unclaimed if set(origin.outputs[n]) <= origin.constant}
        folded |= origin.find_dead_nodes()
        for name in self._constants:
            if name in origin.maker:
                folded |= set(origin.find_cone(name, (), self.same)[0]) - claimed
        folded -= claimed
        guessed = [name for name in unclaimed if name not in folded]
        lost = _attach_unclaimed(origin, assignments, guessed)
        return Lineage(
            tuple(origin.sort_nodes(sources) for sources in assignments),
            origin.sort_nodes([*folded, *lost]),
            tuple(name for name in guessed if name not in lost),
            followed,
        )

    def _find_cone(self, node: Executed, stop: set[str]) -> dict[str, None]:
        cone = dict.fromkeys(k for k in node.known if k in self._origin.nodes)
        read = {self.source[name] for name in node.reads if name in self.source}
        for name in node.writes:
            value = self.source.get(name)
            if value is not None and value not in read:
                cone |= self._origin.find_cone(value, stop, self.same)[0]
        named = self.source_by_name.get(node.name)
        if named is not None and not cone and node.op_type not in ADDED:
            cone[named] = None
        return cone

    def _find_following(self, node: Executed, stop: set[str]) -> dict[str, None]:
        """Return what lies between the nearest known tensors after a node, for one without any."""
        if node.op_type in ADDED and node.name not in self.source_by_name:
            return {}
        pending = [name for name in node.writes if name]
        seen = set(pending)
        cone: dict[str, None] = {}
        for name in pending:
            if name in self.source:
                cone |= self._origin.find_cone(self.source[name], stop, self.same)[0]
                continue
            for reader in self.readers[name]:
                new = [w for w in reader.writes if w and w not in seen]
                seen.update(new)
                pending += new
        return cone

    def _assign_followers(self, assignments: Sequence[dict[str, None]]) -> tuple[str, ...]:
        """Give kernels that nothing tells of what reads their predecessors and is claimed by none.

        Several in a row stand for the same source nodes together. Return those that got some.
        """
        maker = {name: at for at, node in enumerate(self._nodes) for name in node.writes if name}
        claimed = {name for sources in assignments for name in sources}
        late: set[int] = set()
        for at, node in enumerate(self._nodes):
            if assignments[at] or node.op_type in ADDED:
                continue
            before = [maker[name] for name in node.reads if name in maker]
            values = [v for b in before for n in assignments[b] for v in self._origin.outputs[n]]
            readers = {r for value in values for r in self._origin.readers[value]} - claimed
            shared = {name for b in before if b in late for name in assignments[b]}
            assignments[at].update(dict.fromkeys(self._origin.sort_nodes(readers or shared)))
            late.add(at)
        return tuple(self._nodes[at].name for at in sorted(late) if assignments[at])


def _list_stems(node: Executed) -> list[str]:
    """Return the name, then what is left of it without what the runtime appended."""
    stems = [node.name]
    while (shorter := TAIL.sub("", stems[-1])) != stems[-1] and shorter:
        stems.append(shorter)
    if node.op_type in ADDED and ADDED[node.op_type] != "quantize":
        return stems[:1]
    return stems


def _is_candidate(node: Executed, source: ir.Node) -> bool:
    """Whether a node of this name may be the source: added ones need the operator itself."""
    if node.op_type in ADDED:
        return source.op_type == node.op_type or bool(node.known)
    return True


def _attach_unclaimed(
    origin: Origin, assignments: Sequence[dict[str, None]], unclaimed: Iterable[str]
) -> set[str]:
    """Give unclaimed nodes to the kernel of a reader, else of a maker; return the others."""
    owner = {name: sources for sources in assignments for name in sources}
    pending = list(unclaimed)
    while pending:
        remaining = []
        for name in reversed(pending):
            readers = [r for value in origin.outputs[name] for r in origin.readers[value]]
            makers = [origin.maker[v] for v in origin.inputs[name] if v in origin.maker]
            near = next((owner[n] for n in (*readers, *makers) if n in owner), None)
            if near is None:
                remaining.append(name)
            else:
                near[name] = None
                owner[name] = near
        if len(remaining) == len(pending):
            return set(remaining)
        pending = list(reversed(remaining))
    return set()


def trace_lineage(model: ir.Model, recorded: Recorded) -> Lineage:
    """Map each executed node to nodes of the source; `model` has unique names, no functions."""
    return TensorSources(Origin(model), recorded).build_lineage()


_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_KERNELS = ("conv", "matmul", "gemm", "fullyconnected")
"""Parts of the names of kernels that compute layers, in lower case."""
_BESIDE = {
    "Subtract",
    *(op for op, kind in ADDED.items() if kind in ("cast", "quantize", "reorder")),
}
"""Kernels that only change how numbers are stored."""
_SEEN_NS = 1000
"""What takes less in a run is left out."""


def count_integer_layers(
    model: ir.Model, recorded: Recorded, traced: Lineage | None = None
) -> IntegerUse | None:
    """Compare the layers of a Q/DQ file with the kernels that ran; None of a file without any.

    A layer was given integers where its activation and its weight both come out of a
    DequantizeLinear. It ran in float where the kernel that stands for it reads float.

    Args:
        model: As the runtime loaded it; names are unique and functions inlined.
        traced: Which source nodes each kernel stands for; found here if not given.
    """
    layers = [n for n in edit.walk_nodes(model) if n.op_type in _LAYERS and not n.domain]
    layer_names = {str(n.name) for n in layers if all(map(qdq.is_integer, n.inputs[:2]))}
    if not layer_names:
        return None
    sources = (traced or trace_lineage(model, recorded)).sources
    in_float: dict[str, float] = {}
    beside: Counter[str] = Counter()
    for kernel, nodes in zip(recorded.nodes, sources, strict=True):
        if kernel.op_type in _BESIDE:
            beside[kernel.op_type] += round(kernel.spent_ns)
        elif _reads_float(kernel):
            for name in layer_names.intersection(nodes):
                in_float[name] = in_float.get(name, 0.0) + kernel.spent_ns
    return IntegerUse(
        len(layer_names), in_float, {op: ns for op, ns in beside.most_common() if ns >= _SEEN_NS}
    )


def _reads_float(kernel: Executed) -> bool:
    """Say whether a layer's kernel takes a float activation; of no other kernel it is said."""
    named = any(part in kernel.op_type.lower() for part in _KERNELS)
    return named and bool(kernel.inputs) and "int8" not in kernel.inputs[0].dtype
