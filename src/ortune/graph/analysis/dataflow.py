"""A model as a web of values, and its parts as a person can name them.

Parts are found by the scopes that exporters leave in node names, in metadata or in the names of
weights; repeated layers are joined under one pattern. A model without scopes is cut where few
tensors are alive.
"""

import ast
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import onnx_ir as ir

from ortune.core.profile import Region
from ortune.graph.ir.edit import Graph, const_tensor, list_bodies
from ortune.graph.ir.match import RANDOM

_SMALL = 4096
"""Constants up to this many bytes are told apart by content, larger ones by name."""
_PASSED_ON = frozenset({"Identity", "Dropout"})


class Origin:
    """The nodes of a model, bodies included, by the names of nodes and values.

    Every node and value must have a name of its own (`ortune.graph.io.names.make_names_unique`)
    and calls of local functions be inlined.
    """

    def __init__(self, model: ir.Model) -> None:
        # Name -> node, in the order of the file; a body follows the node that holds it.
        self.nodes: dict[str, ir.Node] = {}
        self.maker: dict[str, str] = {}  # value -> name of the node that makes it
        self.inputs: dict[str, tuple[str, ...]] = {}  # node -> values that it reads itself
        self.outputs: dict[str, tuple[str, ...]] = {}  # node -> values that it makes
        self.readers: dict[str, list[str]] = defaultdict(list)  # value -> nodes that read it
        self.constant: set[str] = set()  # values that depend on constants alone
        self.results: set[str] = set()  # the model's outputs and those of every body
        self._through: dict[str, list[str]] = defaultdict(list)
        self._kind: dict[str, str] = {}
        self._index_graph(model.graph)

    def _index_graph(self, graph: Graph) -> None:
        initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
        for value in initializers:
            self.constant.add(str(value.name))
            self._kind[str(value.name)] = _describe_content(value)
        for value in graph.inputs:
            self._kind.setdefault(str(value.name), f"input {value.name}")
        self.results |= {str(value.name) for value in graph.outputs}
        for node in graph:
            self._index_node(node)

    def _index_node(self, node: ir.Node) -> None:
        name = str(node.name)
        self.nodes[name] = node
        self.inputs[name] = tuple(str(v.name) for v in node.inputs if v is not None and v.name)
        self.outputs[name] = tuple(str(v.name) for v in node.outputs if v.name)
        for value in dict.fromkeys(self.inputs[name]):
            self.readers[value].append(name)
        self.maker |= dict.fromkeys(self.outputs[name], name)
        inner = list(list_bodies(node))
        for body in inner:
            self._link_body(node, body)
            self._index_graph(body)
        fixed = all(value in self.constant for value in self.inputs[name])
        if fixed and not inner and node.op_type not in RANDOM:
            self.constant.update(self.outputs[name])
        # Give equal computations of equal values the same text.
        holds = bool(inner)
        if node.op_type in _PASSED_ON and not node.domain and self.inputs[name]:
            self._kind |= dict.fromkeys(
                self.outputs[name][:1], self._kind_of(self.inputs[name][0])
            )
            return
        if holds or node.op_type in RANDOM:
            return
        tensor = const_tensor(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is not None:
            self._kind[self.outputs[name][0]] = _describe_content(node.outputs[0])
            return
        read = [self._kind_of(str(v.name)) if v is not None else "" for v in node.inputs]
        settings = sorted(f"{key}={attr.value}" for key, attr in node.attributes.items())
        text = "\0".join([node.domain, node.op_type, *settings, *read])
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        for index, output in enumerate(node.outputs):
            if output.name:
                self._kind[str(output.name)] = f"{digest} {index}"

    def _link_body(self, node: ir.Node, body: ir.Graph) -> None:
        """Let values go into a body and out of it."""
        offset = 2 if node.op_type == "Loop" else 0
        for value, outer in zip(body.inputs[offset:], node.inputs[offset:], strict=False):
            if outer is not None and outer.name:
                self._through[str(value.name)].append(str(outer.name))
        skip = 1 if node.op_type == "Loop" else 0
        for value, inner in zip(node.outputs, body.outputs[skip:], strict=False):
            if value.name and inner.name:
                self._through[str(value.name)].append(str(inner.name))

    def _kind_of(self, value: str) -> str:
        return self._kind.get(value, f"value {value}")

    def map_equal_values(self, written: Collection[str]) -> dict[str, str]:
        """Return value -> the one that stands for all that are equal to it.

        Values that are `written` stand for themselves, and before others.
        """
        chosen: dict[str, str] = {}
        for value in sorted(self.maker, key=lambda value: value not in written):
            chosen.setdefault(self._kind_of(value), value)
        values = [*self.maker, *(v for v in self._kind if v not in self.maker)]
        for value in values:
            if value not in self.maker:  # inputs and constants come before their copies
                chosen[self._kind_of(value)] = value
        return {
            v: v if v in written or v not in self.maker else chosen[self._kind_of(v)]
            for v in values
        }

    def list_source_values(self, value: str) -> Iterable[str]:
        """Return the values that a value is made of directly, through bodies too."""
        node = self.maker.get(value)
        return (*(self.inputs[node] if node else ()), *self._through.get(value, ()))

    def find_cone(
        self, start: str, stop: Collection[str], same: Mapping[str, str]
    ) -> tuple[dict[str, None], set[str]]:
        """Return the nodes that make `start` from values of `stop`, the nearest first.

        Constants and values without a maker stop the walk too.

        Returns:
            The nodes, and the values of `stop` that were met.
        """
        nodes: dict[str, None] = {}
        met: set[str] = set()
        pending = [start]
        seen = {start}
        for value in pending:
            if (node := self.maker.get(value)) is not None:
                nodes[node] = None
            for earlier in self.list_source_values(value):
                value_ = same.get(earlier, earlier)
                if value_ in seen:
                    continue
                seen.add(value_)
                if value_ in stop:
                    met.add(value_)
                elif value_ not in self.constant:
                    pending.append(value_)
        return nodes, met

    def find_dead_nodes(self) -> set[str]:
        """Return the nodes that no output depends on."""
        pending = list(self.results)
        seen = set(pending)
        for value in pending:
            for earlier in self.list_source_values(value):
                if earlier not in seen:
                    seen.add(earlier)
                    pending.append(earlier)
        return {n for n, outputs in self.outputs.items() if not seen.intersection(outputs)}

    def sort_nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names of nodes in the order of the file."""
        selected = set(names)
        return tuple(name for name in self.nodes if name in selected)


def _describe_content(value: ir.Value) -> str:
    tensor = const_tensor(value)
    if tensor is None or tensor.nbytes > _SMALL or tensor.dtype == ir.DataType.STRING:
        return f"value {value.name}"
    return f"{tensor.dtype}{list(tensor.shape)} {tensor.numpy().tobytes().hex()}"


_MOST = 16
"""Regions at most; about 5 to 20 can be taken in at a glance."""
_SHARE = 0.12
"""A region with fewer of the nodes is not divided further."""
_BLOCKS = 10
_SCOPES = "pkg.torch.onnx.name_scopes"
_NO_SCOPE = "_empty_nn_module_stack_from_metadata_hook"
"""What torch writes for a node of no module."""
_MAIN = (
    "Conv ConvTranspose ConvInteger QLinearConv MatMul Gemm MatMulInteger QLinearMatMul LSTM GRU "
    "RNN Attention MultiHeadAttention Resize Softmax LayerNormalization"
)
_RANK = {op: rank for rank, op in enumerate(_MAIN.split())}

_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Regions:
    """The parts of a model."""

    all: tuple[Region, ...]  # in the order of their first nodes
    of: Mapping[str, str]  # node -> name of its region
    # Node of a pattern -> the scope that it is in, of those that the pattern joins.
    member: Mapping[str, str] = field(default_factory=dict)


def divide_into_regions(origin: Origin) -> Regions:
    """Divide a model's nodes into regions."""
    paths = _assign_paths(origin)
    if len({_make_pattern(path) for path in paths.values()}) < 2:
        return _cut_blocks(origin)
    groups: dict[_Path, list[str]] = {(): list(origin.nodes)}
    closed: set[_Path] = set()
    while len(groups) < _MOST:
        able = [key for key in groups if key not in closed]
        if not able:
            break
        key = max(able, key=lambda key: len(groups[key]))
        if len(groups[key]) < _SHARE * len(paths) and len(groups) >= 5:
            break
        closed.add(key)
        parts: dict[_Path, list[str]] = defaultdict(list)
        for name in groups[key]:
            parts[_make_pattern(paths[name])[: len(key) + 1]].append(name)
        if not key and len(parts) > _MOST:
            return _cut_blocks(origin)  # names without scopes
        if len(groups) - 1 + len(parts) <= _MOST:
            del groups[key]
            groups |= parts
    place = {name: at for at, name in enumerate(origin.nodes)}
    ordered = sorted(groups.items(), key=lambda item: min(place[name] for name in item[1]))
    regions: list[Region] = []
    of: dict[str, str] = {}
    member: dict[str, str] = {}
    for key, names in ordered:
        text = ".".join(key) or "(top)"
        joined: tuple[str, ...] = ()
        if "*" in key:
            scopes = {name: ".".join(paths[name][: len(key)]) for name in names}
            joined = tuple(dict.fromkeys(scopes.values()))
            member |= scopes
        regions.append(Region(text, joined, len(names)))
        of |= dict.fromkeys(names, text)
    return Regions(tuple(regions), of, member)


def _make_pattern(path: _Path) -> _Path:
    return tuple("*" if part.isdigit() else part for part in path)


def _assign_paths(origin: Origin) -> dict[str, _Path]:
    """Return node -> scope; nodes without any take that of what they read, else of a reader."""
    scopes = {name: _read_scope(origin, name) for name in origin.nodes}
    paths: dict[str, _Path] = {}
    for name in origin.nodes:
        makers = (origin.maker[v] for v in origin.inputs[name] if v in origin.maker)
        near = next((paths[m] for m in makers if paths.get(m)), ())
        paths[name] = scopes[name] or near
    for name in reversed(origin.nodes):
        if not paths[name]:
            readers = (r for value in origin.outputs[name] for r in origin.readers[value])
            paths[name] = next((paths[r] for r in readers if paths.get(r)), ())
    return paths


def _read_scope(origin: Origin, name: str) -> _Path:
    node = origin.nodes[name]
    if _SCOPES in node.metadata_props:
        try:
            scopes = ast.literal_eval(node.metadata_props[_SCOPES])
        except (SyntaxError, ValueError):
            scopes = []
        if len(scopes) > 1 and scopes[-2] != _NO_SCOPE:
            return _split_path(str(scopes[-2]))
    if "/" in name.strip("/"):
        return _split_path(name.rpartition("/")[0])
    for value in origin.inputs[name]:
        scoped = value.rpartition(".")[0]
        if value in origin.constant and value not in origin.maker and scoped:
            return _split_path(scoped)
    return ()


def _split_path(text: str) -> _Path:
    return tuple(part for part in re.split(r"[./]", text) if part)


def _cut_blocks(origin: Origin) -> Regions:
    """Cut the model where the fewest tensors go on, into up to ten blocks of alike size."""
    names = list(origin.nodes)
    place = {name: at for at, name in enumerate(names)}
    begun = [0] * (len(names) + 1)
    for name in names:
        for value in origin.outputs[name]:
            readers = origin.readers.get(value, ())
            last = max((place[reader] for reader in readers), default=-1)
            if value not in origin.constant and last > place[name]:
                begun[place[name]] += 1
                begun[last] -= 1
    width = list(accumulate(begun))
    size = max(1, len(names) // _BLOCKS)
    regions: list[Region] = []
    of: dict[str, str] = {}
    start = 0
    while start < len(names):
        window = range(start + size, min(start + 2 * size, len(names)))
        cut = min(window, key=lambda at: width[at - 1], default=len(names))
        cut = len(names) if len(names) - cut < size else cut
        block = names[start:cut]
        kinds = Counter(origin.nodes[name].op_type for name in block)
        main = min(kinds, key=lambda op: (_RANK.get(op, len(_RANK)), -kinds[op]))
        text = f"block {len(regions) + 1}: {main} x{kinds[main]}"
        regions.append(Region(text, (), len(block)))
        of |= dict.fromkeys(block, text)
        start = cut
    return Regions(tuple(regions), of)
