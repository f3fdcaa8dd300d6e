"""Group the nodes of a model into parts that a person can name.

By the scopes that exporters leave in node names, in metadata or in the names of weights; repeated
layers are joined under one pattern. A model without scopes is cut where few tensors are alive.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from ortune.core.profile import Region
from ortune.graph.analysis.dataflow import Origin

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
