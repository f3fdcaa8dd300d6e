"""Set two models side by side: nodes, weights, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from ortune.core.event import Progress, Sink, ignore_event
from ortune.graph.diff.graphs import Graphs
from ortune.graph.diff.groups import NodeGroups
from ortune.graph.diff.matching import NodePairs
from ortune.graph.diff.result import Diff, DrawnNode, Group, HeaderField, Weight
from ortune.graph.diff.weights import Constant, largest_change
from ortune.graph.io import names
from ortune.graph.ir import edit, spec

_LITTLE, _MANY, _FEW, _TELLING = 0.1, 0.3, 3, 16


def diff_models(a: ir.Model, b: ir.Model, sink: Sink = ignore_event) -> Diff:
    """Say what became of each node and weight of `a` in `b`.

    Calls of local functions are replaced by their bodies in both models, and names made unique.
    Weights are read in parts; those without a counterpart of the same content are compared by
    some thousand elements, and as a whole where they differ. `sink` receives how far it is.
    """
    sink(Progress("matching nodes", 1, 4))
    for model in (a, b):
        edit.inline_functions(model)
        names.make_names_unique(model)
    graphs = Graphs(a, b)
    pairs = NodePairs(graphs)
    related = _are_related(pairs)
    groups = NodeGroups(pairs, related).list_groups()
    sink(Progress("comparing weights", 2, 4))
    stored: tuple[list[int], list[int]] = ([], [])
    for value in sorted(graphs.constants):
        if graphs.maker[value] < 0 or graphs.op[graphs.maker[value]] == "Constant":
            stored[graphs.side_of_value(value)].append(value)
    equal, weights = _compare_weights(pairs, stored)
    fields = _compare_headers(a, b)
    named_results = {graphs.names[v]: v for v in graphs.results[1]}
    same = (
        all(group.kind == "matched" for group in groups)
        and not any(field.interface for field in fields)
        and not weights
        and all(
            pairs.hashes.get(v) == pairs.hashes.get(named_results.get(graphs.names[v], -1))
            for v in graphs.results[0]
            if v in pairs.hashes
        )
    )
    ops = [Counter(graphs.op[node] for node in graphs.list_nodes(which)) for which in (0, 1)]
    sizes: list[Counter[str]] = [Counter(), Counter()]
    for which, side in enumerate(stored):
        for value in side:
            tensor = graphs.constants[value].tensor
            sizes[which][spec.dtype_name(tensor.dtype)] += tensor.nbytes
    return Diff(
        same=same,
        related=related,
        groups=tuple(groups),
        nodes=_draw_nodes(graphs, groups),
        ops=_pair_counts(*ops),
        weight_bytes=_pair_counts(*sizes),
        equal_weights=equal,
        weights=tuple(weights),
        fields=tuple(fields),
        names_trusted=pairs.names_trusted,
    )


def _are_related(pairs: NodePairs) -> bool:
    """Say whether nodes with evidence of their own are enough to believe the others.

    Where both models have weights, their sizes must agree, as other nodes look alike everywhere;
    without weights many nodes must have found a partner.
    """
    graphs, partner = pairs.graphs, pairs.partner
    sides = [graphs.list_nodes(which) for which in (0, 1)]
    weighing = [[n for n in side if _has_telling_weights(graphs, n)] for side in sides]
    if min(map(len, weighing)) >= _FEW:
        sure = [a for a in weighing[0] if a in pairs.sure]
        kept = [a for a in sure if pairs.has_equal_sizes(a, partner[a]) is not False]
        return len(kept) >= _LITTLE * min(map(len, weighing))
    aside = {n for n, shapely in enumerate(graphs.shapely) if shapely or graphs.is_constant(n)}
    counted = [[n for n in side if n not in aside] for side in sides]
    least = min(map(len, counted))
    return not least or len(partner.keys() & set(counted[0])) >= _MANY * least


def _has_telling_weights(graphs: Graphs, node: int) -> bool:
    constants = [graphs.constants[v] for v in graphs.reads[node] if v in graphs.constants]
    return any(c.size >= _TELLING for c in constants) and not graphs.is_constant(node)


def _draw_nodes(
    graphs: Graphs, groups: Sequence[Group]
) -> tuple[tuple[DrawnNode, ...], tuple[DrawnNode, ...]]:
    owners = [
        {node: index for index, group in enumerate(groups) for node in (group.a, group.b)[which]}
        for which in (0, 1)
    ]
    layers = graphs.compute_layers()
    filled: Counter[tuple[int, int]] = Counter()
    sides: tuple[list[DrawnNode], list[DrawnNode]] = ([], [])
    for node, layer in enumerate(layers):
        which, holder = graphs.side_of_node(node), graphs.scope[node]
        number = len(sides[which])
        sides[which].append(
            DrawnNode(
                id=number,
                name=str(graphs.nodes[node].name),
                op=graphs.op[node],
                inputs=tuple(graphs.names[v] if v >= 0 else "" for v in graphs.reads[node]),
                outputs=tuple(graphs.names[v] if v >= 0 else "" for v in graphs.writes[node]),
                scope=str(graphs.nodes[holder].name) if holder >= 0 else "",
                layer=layer,
                place=filled[which, layer],
                group=owners[which][number],
            )
        )
        filled[which, layer] += 1
    return tuple(sides[0]), tuple(sides[1])


def _pair_counts(first: Counter[str], second: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return key -> counts of both, the largest first."""
    keys = sorted({*first, *second}, key=lambda key: (-max(first[key], second[key]), key))
    return {key: (first[key], second[key]) for key in keys}


def _compare_weights(
    pairs: NodePairs, stored: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, list[Weight]]:
    """Return how many weights are equal, and the others: by their readers, then by name."""
    graphs, constants = pairs.graphs, pairs.graphs.constants
    contents = [{constants[value].digest for value in side} for side in stored]
    first = [value for value in stored[0] if constants[value].digest not in contents[1]]
    second = [value for value in stored[1] if constants[value].digest not in contents[0]]
    # Readers see a weight behind others that only bring it into another form.
    roots = [{constants[value].name: value for value in side} for side in (first, second)]
    match: dict[int, tuple[int, int, int]] = {}
    matched: set[int] = set()

    def take(u: int, v: int) -> None:
        if u in constants and v in constants:
            a, b = roots[0].get(constants[u].name), roots[1].get(constants[v].name)
            if a is not None and b is not None and a not in match and b not in matched:
                match[a] = b, u, v
                matched.add(b)

    for a, b in pairs.list_pairs():
        if not graphs.is_constant(a):
            for u, v in pairs.pair_inputs(a, b):
                take(u, v)
    if pairs.names_trusted:
        for u in first:
            take(u, roots[1].get(constants[u].name, -1))
    changes = [_describe_change(pairs, *match[a][1:]) for a in first if a in match]
    changes += [_describe_unmatched(constants[u], True) for u in first if u not in match]
    changes += [_describe_unmatched(constants[v], False) for v in second if v not in matched]
    return len(stored[0]) - len(first), changes


def _describe_change(pairs: NodePairs, u: int, v: int) -> Weight:
    first, second = (pairs.graphs.constants[value] for value in (u, v))
    relation = pairs.find_relation(u, v) or "changed"
    moved = largest_change(first, second) if relation not in ("reordered", "reshaped") else None
    return Weight(
        first.name,
        second.name,
        relation,
        (spec.dtype_name(first.tensor.dtype), spec.dtype_name(second.tensor.dtype)),
        (first.file_shape, second.file_shape),
        (first.tensor.nbytes, second.tensor.nbytes),
        *(moved or (None, None)),
    )


def _describe_unmatched(constant: Constant, first: bool) -> Weight:
    kind = spec.dtype_name(constant.tensor.dtype)
    shape = constant.file_shape
    size = constant.tensor.nbytes
    if first:
        return Weight(constant.name, "", "removed", (kind, ""), (shape, ()), (size, 0))
    return Weight("", constant.name, "added", ("", kind), ((), shape), (0, size))


def _compare_headers(a: ir.Model, b: ir.Model) -> list[HeaderField]:
    fields = []
    for kind, first, second in (
        ("input", spec.list_inputs(a), spec.list_inputs(b)),
        ("output", spec.list_outputs(a), spec.list_outputs(b)),
    ):
        sides = [
            {s.name: f"{s.dtype} {_spell_dims(s.shape)}" for s in specs}
            for specs in (first, second)
        ]
        fields += [
            HeaderField(f"{kind} {name}", sides[0].get(name), sides[1].get(name), True)
            for name in dict.fromkeys((*sides[0], *sides[1]))
        ]
        if set(sides[0]) == set(sides[1]):
            fields.append(
                HeaderField(f"order of {kind}s", ", ".join(sides[0]), ", ".join(sides[1]), True)
            )
    for domain in dict.fromkeys((*a.opset_imports, *b.opset_imports)):
        versions = [model.opset_imports.get(domain) for model in (a, b)]
        text = [None if version is None else str(version) for version in versions]
        meaning = None not in versions and not domain
        fields.append(HeaderField(f"opset {domain}".rstrip(), text[0], text[1], meaning))
    fields.append(HeaderField("IR version", str(a.ir_version), str(b.ir_version)))
    producers = [f"{m.producer_name or ''} {m.producer_version or ''}".strip() for m in (a, b)]
    fields.append(HeaderField("producer", producers[0], producers[1]))
    metadata = a.metadata_props, b.metadata_props
    for key in dict.fromkeys((*metadata[0], *metadata[1])):
        fields.append(HeaderField(f"metadata {key}", metadata[0].get(key), metadata[1].get(key)))
    return [field for field in fields if field.a != field.b]


def _spell_dims(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of any rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
