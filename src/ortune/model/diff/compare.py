"""Set two models side by side: nodes, weights, inputs and outputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortune.model.diff.groups import groups
from ortune.model.diff.pairs import Pairs
from ortune.model.diff.result import Diff, Drawn, Field, Group, Weight
from ortune.model.diff.side import Side
from ortune.model.diff.weights import Held, largest
from ortune.model.graph import edit, spec
from ortune.model.io import names

_LITTLE, _MANY, _FEW, _TELLING = 0.1, 0.3, 3, 16


def diff(a: ir.Model, b: ir.Model) -> Diff:
    """Say what became of each node and weight of `a` in `b`.

    Calls of local functions are replaced by their bodies in both models, and names made unique.
    Weights are read in parts; those without a counterpart of the same content are compared by
    some thousand elements, and as a whole where they differ.
    """
    for model in (a, b):
        edit.inline(model)
        names.unique(model)
    one, two = Side(a), Side(b)
    pairs = Pairs(one, two)
    related = _related(pairs)
    found = groups(pairs, related=related)
    equal, weights = _weights(pairs)
    fields = _fields(a, b)
    same = (
        all(group.kind == "matched" for group in found)
        and not any(field.interface for field in fields)
        and not weights
        and _same_results(pairs)
    )
    owner = _owner(found)
    return Diff(
        same=same,
        related=related,
        groups=tuple(found),
        nodes=(_drawn(one, owner[0]), _drawn(two, owner[1])),
        ops=_ops(one, two),
        weight_bytes=_bytes(one, two),
        equal_weights=equal,
        weights=tuple(weights),
        fields=tuple(fields),
        names_trusted=pairs.names_trusted,
    )


def _related(pairs: Pairs) -> bool:
    """Say whether nodes with evidence of their own are enough to believe the others.

    Where both models have weights, their sizes must agree, as other nodes look alike everywhere;
    without weights many nodes must have found a partner.
    """
    weighing = [_weighing(side) for side in (pairs.one, pairs.two)]
    if min(len(nodes) for nodes in weighing) >= _FEW:
        linked = {a for a, _ in pairs.links}
        kept = [
            a
            for a in weighing[0]
            if a in linked or (a in pairs.sure and pairs.fit(a, pairs.of_a[a]) is not False)
        ]
        return len(kept) >= _LITTLE * min(len(nodes) for nodes in weighing)
    counted = [
        [n for n in range(len(side.nodes)) if not side.fixed(n) and not side.shapely[n]]
        for side in (pairs.one, pairs.two)
    ]
    least = min(map(len, counted))
    return not least or len(set(pairs.of_a) & set(counted[0])) >= _MANY * least


def _weighing(side: Side) -> list[int]:
    """Return the nodes that read weights."""
    return [
        node
        for node, read in enumerate(side.reads)
        if any(v in side.held and side.held[v].size >= _TELLING for v in read)
        and not side.fixed(node)
    ]


def _same_results(pairs: Pairs) -> bool:
    one, two = pairs.one, pairs.two
    by_name = {two.names[v]: v for v in two.results}
    return all(
        one.names[v] in by_name
        and pairs.hashes[0].get(v) == pairs.hashes[1].get(by_name[one.names[v]])
        for v in one.results
        if v in pairs.hashes[0]
    )


def _owner(found: Sequence[Group]) -> tuple[dict[int, int], dict[int, int]]:
    return (
        {node: index for index, group in enumerate(found) for node in group.a},
        {node: index for index, group in enumerate(found) for node in group.b},
    )


def _drawn(side: Side, owner: Mapping[int, int]) -> tuple[Drawn, ...]:
    layers = side.layers()
    filled: Counter[int] = Counter()
    found = []
    for node, layer in enumerate(layers):
        holder = side.scope[node]
        found.append(
            Drawn(
                id=node,
                name=str(side.nodes[node].name),
                op=side.op[node],
                inputs=tuple(side.names[v] if v >= 0 else "" for v in side.reads[node]),
                outputs=tuple(side.names[v] if v >= 0 else "" for v in side.writes[node]),
                scope=str(side.nodes[holder].name) if holder >= 0 else "",
                layer=layer,
                place=filled[layer],
                group=owner[node],
            )
        )
        filled[layer] += 1
    return tuple(found)


def _ops(one: Side, two: Side) -> dict[str, tuple[int, int]]:
    left, right = Counter(one.op), Counter(two.op)
    every = sorted({*left, *right}, key=lambda op: (-max(left[op], right[op]), op))
    return {op: (left[op], right[op]) for op in every}


def _stored(side: Side) -> dict[int, Held]:
    """Return the weights that the file holds, each where it is made."""
    return {
        value: held
        for value, held in side.held.items()
        if side.maker[value] < 0 or side.op[side.maker[value]] == "Constant"
    }


def _bytes(one: Side, two: Side) -> dict[str, tuple[int, int]]:
    totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for side, total in zip((one, two), totals, strict=True):
        for held in _stored(side).values():
            total[spec.dtype_name(held.tensor.dtype)] += held.tensor.nbytes
    every = sorted({*totals[0], *totals[1]}, key=lambda k: -max(totals[0][k], totals[1][k]))
    return {kind: (totals[0][kind], totals[1][kind]) for kind in every}


def _weights(pairs: Pairs) -> tuple[int, list[Weight]]:
    """Return how many weights are equal, and the others."""
    one, two = _stored(pairs.one), _stored(pairs.two)
    content: dict[str, list[int]] = defaultdict(list)
    for value, held in two.items():
        content[held.digest].append(value)
    left, gone = [], set()
    for value, held in one.items():
        if held.digest in content:
            gone.add(held.digest)
        else:
            left.append(value)
    right = [value for value, held in two.items() if held.digest not in gone]
    equal = len(one) - len(left)
    return equal, _changed(pairs, left, right)


def _changed(pairs: Pairs, left: list[int], right: list[int]) -> list[Weight]:
    """Set the weights that differ beside each other: by the nodes that read them, then by name."""
    roots = _roots(pairs.one, left), _roots(pairs.two, right)
    match: dict[int, tuple[int, int, int]] = {}
    taken: set[int] = set()

    def take(u: int, v: int) -> None:
        a, b = roots[0].get(u, -1), roots[1].get(v, -1)
        if a >= 0 and b >= 0 and a not in match and b not in taken:
            match[a] = b, u, v
            taken.add(b)

    for a, b in pairs.of_a.items():
        if pairs.one.fixed(a):
            continue
        for u, v in pairs.slots(a, b):
            take(u, v)
    by_name = {pairs.two.names[v]: v for v in right}
    for u in left:
        if pairs.names_trusted and pairs.one.names[u] in by_name:
            take(u, by_name[pairs.one.names[u]])
    found = [_beside(pairs, *match[a][1:]) for a in left if a in match]
    found += [_single(pairs.one.held[u], True) for u in left if u not in match]
    return found + [_single(pairs.two.held[v], False) for v in right if v not in taken]


def _roots(side: Side, stored: Sequence[int]) -> dict[int, int]:
    """Return value -> the stored weight that it hands on."""
    by_name = {side.held[value].name: value for value in stored}
    found = {}
    for value, held in side.held.items():
        if held.name in by_name:
            found[value] = by_name[held.name]
    return found


def _beside(pairs: Pairs, u: int, v: int) -> Weight:
    one, two = pairs.one.held[u], pairs.two.held[v]
    told = pairs.relation(u, v) or "changed"
    moved = largest(one, two) if told not in ("reordered", "reshaped") else None
    return Weight(
        one.name,
        two.name,
        told,
        (spec.dtype_name(one.tensor.dtype), spec.dtype_name(two.tensor.dtype)),
        (_shape(one), _shape(two)),
        (one.tensor.nbytes, two.tensor.nbytes),
        *(moved or (None, None)),
    )


def _single(held: Held, first: bool) -> Weight:
    kind, shape, size = spec.dtype_name(held.tensor.dtype), _shape(held), held.tensor.nbytes
    if first:
        return Weight(held.name, "", "removed", (kind, ""), (shape, ()), (size, 0))
    return Weight("", held.name, "added", ("", kind), ((), shape), (0, size))


def _shape(held: Held) -> tuple[int, ...]:
    return tuple(held.tensor.shape.numpy())


def _fields(a: ir.Model, b: ir.Model) -> list[Field]:
    found = []
    for what, left, right in (
        ("input", spec.inputs(a), spec.inputs(b)),
        ("output", spec.outputs(a), spec.outputs(b)),
    ):
        sides = [{s.name: f"{s.dtype} {_dims(s.shape)}" for s in specs} for specs in (left, right)]
        found += [
            Field(f"{what} {name}", sides[0].get(name), sides[1].get(name), True)
            for name in dict.fromkeys((*sides[0], *sides[1]))
        ]
        orders = [", ".join(one) for one in sides]
        if set(sides[0]) == set(sides[1]):
            found.append(Field(f"order of {what}s", orders[0], orders[1], True))
    for domain in dict.fromkeys((*a.opset_imports, *b.opset_imports)):
        versions = [model.opset_imports.get(domain) for model in (a, b)]
        both = None not in versions
        text = [None if version is None else str(version) for version in versions]
        found.append(Field(f"opset {domain}".rstrip(), text[0], text[1], both and not domain))
    found.append(Field("IR version", str(a.ir_version), str(b.ir_version)))
    found.append(Field("producer", _producer(a), _producer(b)))
    for key in dict.fromkeys((*a.metadata_props, *b.metadata_props)):
        found.append(
            Field(f"metadata {key}", a.metadata_props.get(key), b.metadata_props.get(key))
        )
    return [field for field in found if field.a != field.b]


def _producer(model: ir.Model) -> str:
    return f"{model.producer_name or ''} {model.producer_version or ''}".strip()


def _dims(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of any rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
