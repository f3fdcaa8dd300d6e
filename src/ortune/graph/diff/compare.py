"""Set two models side by side: nodes, weights, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from ortune.core.event import Progress, Sink, silent
from ortune.graph.diff.graphs import Graphs
from ortune.graph.diff.matching import NodeGroups, NodePairs
from ortune.graph.diff.result import Diff, Drawn, Group, HeaderField, Weight
from ortune.graph.diff.weights import Constant, largest_change
from ortune.graph.io import names
from ortune.graph.ir import edit, spec

_LITTLE, _MANY, _FEW, _TELLING = 0.1, 0.3, 3, 16


def diff(a: ir.Model, b: ir.Model, sink: Sink = silent) -> Diff:
    """Say what became of each node and weight of `a` in `b`.

    Calls of local functions are replaced by their bodies in both models, and names made unique.
    Weights are read in parts; those without a counterpart of the same content are compared by
    some thousand elements, and as a whole where they differ. `sink` receives how far it is.
    """
    sink(Progress("matching nodes", 1, 4))
    for model in (a, b):
        edit.inline(model)
        names.unique(model)
    graphs = Graphs(a, b)
    pairs = NodePairs(graphs)
    related = _related(pairs)
    found = NodeGroups(pairs, related).groups()
    sink(Progress("comparing weights", 2, 4))
    stored: tuple[list[int], list[int]] = ([], [])
    for value in sorted(graphs.constants):
        if graphs.maker[value] < 0 or graphs.op[graphs.maker[value]] == "Constant":
            stored[graphs.side_of_value(value)].append(value)
    equal, weights = _weights(pairs, stored)
    fields = _fields(a, b)
    same = (
        all(group.kind == "matched" for group in found)
        and not any(field.interface for field in fields)
        and not weights
        and _same_results(pairs)
    )
    ops = [Counter(graphs.op[node] for node in graphs.of(which)) for which in (0, 1)]
    sizes: list[Counter[str]] = [Counter(), Counter()]
    for which, side in enumerate(stored):
        for value in side:
            tensor = graphs.constants[value].tensor
            sizes[which][spec.dtype_name(tensor.dtype)] += tensor.nbytes
    return Diff(
        same=same,
        related=related,
        groups=tuple(found),
        nodes=_drawn(graphs, found),
        ops=_beside_each_other(*ops),
        weight_bytes=_beside_each_other(*sizes),
        equal_weights=equal,
        weights=tuple(weights),
        fields=tuple(fields),
        names_trusted=pairs.names_trusted,
    )


def _related(pairs: NodePairs) -> bool:
    """Say whether nodes with evidence of their own are enough to believe the others.

    Where both models have weights, their sizes must agree, as other nodes look alike everywhere;
    without weights many nodes must have found a partner.
    """
    graphs, partner = pairs.graphs, pairs.partner
    weighing = [[n for n in graphs.of(which) if _weighs(graphs, n)] for which in (0, 1)]
    if min(map(len, weighing)) >= _FEW:
        kept = [
            a for a in weighing[0] if a in pairs.sure and pairs.fits(a, partner[a]) is not False
        ]
        return len(kept) >= _LITTLE * min(map(len, weighing))
    counted = [
        [n for n in graphs.of(which) if not graphs.constant(n) and not graphs.shapely[n]]
        for which in (0, 1)
    ]
    least = min(map(len, counted))
    return not least or len(partner.keys() & set(counted[0])) >= _MANY * least


def _weighs(graphs: Graphs, node: int) -> bool:
    held = [graphs.constants[v] for v in graphs.reads[node] if v in graphs.constants]
    return any(one.size >= _TELLING for one in held) and not graphs.constant(node)


def _same_results(pairs: NodePairs) -> bool:
    named = {pairs.graphs.names[v]: v for v in pairs.graphs.results[1]}
    return all(
        pairs.hashes.get(v) == pairs.hashes.get(named.get(pairs.graphs.names[v], -1))
        for v in pairs.graphs.results[0]
        if v in pairs.hashes
    )


def _drawn(graphs: Graphs, found: Sequence[Group]) -> tuple[tuple[Drawn, ...], tuple[Drawn, ...]]:
    owners = [
        {node: index for index, group in enumerate(found) for node in (group.a, group.b)[which]}
        for which in (0, 1)
    ]
    layers = graphs.layers()
    filled: Counter[tuple[int, int]] = Counter()
    sides: tuple[list[Drawn], list[Drawn]] = ([], [])
    for node, layer in enumerate(layers):
        which, holder = graphs.side(node), graphs.scope[node]
        own = len(sides[which])
        sides[which].append(
            Drawn(
                id=own,
                name=str(graphs.nodes[node].name),
                op=graphs.op[node],
                inputs=tuple(graphs.names[v] if v >= 0 else "" for v in graphs.reads[node]),
                outputs=tuple(graphs.names[v] if v >= 0 else "" for v in graphs.writes[node]),
                scope=str(graphs.nodes[holder].name) if holder >= 0 else "",
                layer=layer,
                place=filled[which, layer],
                group=owners[which][own],
            )
        )
        filled[which, layer] += 1
    return tuple(sides[0]), tuple(sides[1])


def _beside_each_other(one: Counter[str], two: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return key -> counts of both, the largest first."""
    every = sorted({*one, *two}, key=lambda key: (-max(one[key], two[key]), key))
    return {key: (one[key], two[key]) for key in every}


def _weights(
    pairs: NodePairs, stored: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, list[Weight]]:
    """Return how many weights are equal, and the others: by their readers, then by name."""
    graphs, held = pairs.graphs, pairs.graphs.constants
    contents = [{held[value].digest for value in side} for side in stored]
    left = [value for value in stored[0] if held[value].digest not in contents[1]]
    right = [value for value in stored[1] if held[value].digest not in contents[0]]
    # Readers see a weight behind others that only bring it into another form.
    roots = [{held[value].name: value for value in side} for side in (left, right)]
    match: dict[int, tuple[int, int, int]] = {}
    taken: set[int] = set()

    def take(u: int, v: int) -> None:
        if u in held and v in held:
            a, b = roots[0].get(held[u].name), roots[1].get(held[v].name)
            if a is not None and b is not None and a not in match and b not in taken:
                match[a] = b, u, v
                taken.add(b)

    for a, b in pairs.pairs():
        if not graphs.constant(a):
            for u, v in pairs.slots(a, b):
                take(u, v)
    if pairs.names_trusted:
        for u in left:
            take(u, roots[1].get(held[u].name, -1))
    found = [_changed(pairs, *match[a][1:]) for a in left if a in match]
    found += [_single(held[u], True) for u in left if u not in match]
    found += [_single(held[v], False) for v in right if v not in taken]
    return len(stored[0]) - len(left), found


def _changed(pairs: NodePairs, u: int, v: int) -> Weight:
    one, two = (pairs.graphs.constants[value] for value in (u, v))
    relation = pairs.relation(u, v) or "changed"
    moved = largest_change(one, two) if relation not in ("reordered", "reshaped") else None
    return Weight(
        one.name,
        two.name,
        relation,
        (spec.dtype_name(one.tensor.dtype), spec.dtype_name(two.tensor.dtype)),
        (one.stored_shape, two.stored_shape),
        (one.tensor.nbytes, two.tensor.nbytes),
        *(moved or (None, None)),
    )


def _single(held: Constant, first: bool) -> Weight:
    kind, shape, size = spec.dtype_name(held.tensor.dtype), held.stored_shape, held.tensor.nbytes
    if first:
        return Weight(held.name, "", "removed", (kind, ""), (shape, ()), (size, 0))
    return Weight("", held.name, "added", ("", kind), ((), shape), (0, size))


def _fields(a: ir.Model, b: ir.Model) -> list[HeaderField]:
    found = []
    for what, left, right in (
        ("input", spec.inputs(a), spec.inputs(b)),
        ("output", spec.outputs(a), spec.outputs(b)),
    ):
        sides = [{s.name: f"{s.dtype} {_dims(s.shape)}" for s in specs} for specs in (left, right)]
        found += [
            HeaderField(f"{what} {name}", sides[0].get(name), sides[1].get(name), True)
            for name in dict.fromkeys((*sides[0], *sides[1]))
        ]
        if set(sides[0]) == set(sides[1]):
            found.append(
                HeaderField(f"order of {what}s", ", ".join(sides[0]), ", ".join(sides[1]), True)
            )
    for domain in dict.fromkeys((*a.opset_imports, *b.opset_imports)):
        versions = [model.opset_imports.get(domain) for model in (a, b)]
        text = [None if version is None else str(version) for version in versions]
        meaning = None not in versions and not domain
        found.append(HeaderField(f"opset {domain}".rstrip(), text[0], text[1], meaning))
    found.append(HeaderField("IR version", str(a.ir_version), str(b.ir_version)))
    found.append(HeaderField("producer", _producer(a), _producer(b)))
    metadata = a.metadata_props, b.metadata_props
    for key in dict.fromkeys((*metadata[0], *metadata[1])):
        found.append(HeaderField(f"metadata {key}", metadata[0].get(key), metadata[1].get(key)))
    return [field for field in found if field.a != field.b]


def _producer(model: ir.Model) -> str:
    return f"{model.producer_name or ''} {model.producer_version or ''}".strip()


def _dims(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of any rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
