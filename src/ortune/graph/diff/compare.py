"""Set two models side by side: nodes, weights, inputs and outputs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir

from ortune.core.event import Progress, Sink, ignore_event
from ortune.graph.diff.graphs import (
    PASSED_ON,
    QUANTIZE,
    Graphs,
    is_integer_operator,
    spell_operators,
)
from ortune.graph.diff.matching import LAYOUT, NodePairs
from ortune.graph.diff.result import Diff, DrawnNode, Group, HeaderField, Kind, Weight
from ortune.graph.diff.weights import Constant, largest_change
from ortune.graph.io import names
from ortune.graph.ir import edit

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
            sizes[which][edit.dtype_name(tensor.dtype)] += tensor.nbytes
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
        (edit.dtype_name(first.tensor.dtype), edit.dtype_name(second.tensor.dtype)),
        (first.file_shape, second.file_shape),
        (first.tensor.nbytes, second.tensor.nbytes),
        *(moved or (None, None)),
    )


def _describe_unmatched(constant: Constant, first: bool) -> Weight:
    kind = edit.dtype_name(constant.tensor.dtype)
    shape = constant.file_shape
    size = constant.tensor.nbytes
    if first:
        return Weight(constant.name, "", "removed", (kind, ""), (shape, ()), (size, 0))
    return Weight("", constant.name, "added", ("", kind), ((), shape), (0, size))


def _compare_headers(a: ir.Model, b: ir.Model) -> list[HeaderField]:
    fields = []
    for kind, first, second in (
        ("input", edit.list_inputs(a), edit.list_inputs(b)),
        ("output", edit.list_outputs(a), edit.list_outputs(b)),
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


_CANDIDATES = 40
_SIDES = ((1, 0), (0, 1))
"""How many nodes of either model a group of one node has, by the side of the node."""
_ABSORBING = ("operator", "attributes", "weights: scaled", "weights: changed")
_AHEAD = frozenset({"Pad", "Transpose", "Reshape", "Concat", "Squeeze", "Unsqueeze", "Slice"})
"""What is rather folded into the node behind it than into the one before."""
_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul"})
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div"})


class NodeGroups:
    """Groups of nodes that became one another; sets that are joined (union-find).

    Every node of both models is in one: what lies between pairs of nodes goes with them. What
    depends on constants alone, or counts with shapes, is a group of its own.

    Args:
        related: Take the place of a node as evidence too.
    """

    def __init__(self, pairs: NodePairs, related: bool) -> None:
        self._pairs, self._graphs = pairs, pairs.graphs
        count = len(self._graphs.nodes)
        self._root = list(range(count))
        self._members = {node: [node] for node in range(count)}
        self._counts = {node: _SIDES[self._graphs.side_of_node(node)] for node in range(count)}
        self._places = [
            {value: place for place, value in reversed([*enumerate(values)])}
            for values in (*self._graphs.inputs, *self._graphs.results)
        ]
        self._settled: set[int] = set()
        self._repeated: set[int] = set()
        self._layers = self._graphs.compute_layers()
        for a, b in pairs.list_pairs():
            if related or a in pairs.sure:
                self._settle_nodes(a, b)
        if related:
            for a, b in pairs.ends:
                if not {a, b} <= self._settled:
                    self._settle_nodes(a, b)
            self._join_repeated()
        self._apart = self._set_apart()
        if related:
            for node in list(pairs.partner):
                self._follow_channels(node)
        parts = self._join_parts()
        if related:
            self._absorb_parts(self._match_parts_between_groups(parts))

    def _match_parts_between_groups(self, parts: Sequence[list[int]]) -> list[list[int]]:
        """Join parts of both sides that lie between the same groups; return the others."""
        borders = {part[0]: self._find_borders(part) for part in parts}
        second = {part[0]: part for part in parts if self._graphs.side_of_node(part[0])}
        beside: dict[tuple[int, str], dict[int, None]] = defaultdict(dict)
        for key in second:
            for way in (0, 1):
                for border in borders[key][way]:
                    beside[way, border][key] = None
        place = {key: at for at, key in enumerate(second)}
        unmatched = []
        for part in parts:
            if self._graphs.side_of_node(part[0]):
                continue
            around = borders[part[0]]
            sizes = [sum(len(beside[way, b]) for b in around[way]) for way in (0, 1)]
            fewer = sizes.index(min(sizes))
            first = (
                next(
                    (k for k in beside[fewer, b] if borders[k][1 - fewer] & around[1 - fewer]),
                    None,
                )
                for b in around[fewer]
            )
            matches = [key for key in first if key is not None]
            other = min(matches, key=place.__getitem__, default=None)
            if other is None:
                unmatched.append(part)
                continue
            self._settle_nodes(*part, *second.pop(other))
            for way in (0, 1):
                for border in borders[other][way]:
                    del beside[way, border][other]
        return unmatched + list(second.values())

    def _find_root(self, node: int) -> int:
        while self._root[node] != node:
            self._root[node] = self._root[self._root[node]]
            node = self._root[node]
        return node

    def _join_groups(self, a: int, b: int) -> None:
        first, second = sorted((self._find_root(a), self._find_root(b)))
        if first != second:
            self._root[second] = first
            larger, smaller = self._members[first], self._members.pop(second)
            if len(larger) < len(smaller):
                larger, smaller = smaller, larger
            larger += smaller
            self._members[first] = larger
            counts, more = self._counts[first], self._counts.pop(second)
            self._counts[first] = (counts[0] + more[0], counts[1] + more[1])

    def _settle_nodes(self, *nodes: int) -> None:
        for node in nodes:
            self._join_groups(node, nodes[0])
        self._settled |= set(nodes)

    def _list_neighbours(self, node: int, way: Callable[[int], list[int]]) -> list[int]:
        """Return the nodes beside one, seen through copies that the other side does not have."""
        role = self._graphs.role
        beside: list[int] = []
        pending = [node]
        for start in pending:
            for near in way(start):
                copy = near not in self._settled and role[near] in PASSED_ON
                (pending if copy else beside).append(near)
        return beside

    def _list_producers(self, node: int) -> list[int]:
        return self._list_neighbours(node, self._graphs.list_producers)

    def _list_consumers(self, node: int) -> list[int]:
        return self._list_neighbours(node, self._graphs.list_consumers)

    def _join_repeated(self) -> None:
        """What computes the same as a pair was merged with it, or made by taking it apart."""
        graphs, hashes = self._graphs, self._pairs.hashes
        partner: dict[tuple[int, str], int] = {}
        nodes = [*self._pairs.partner, *(n for n in range(len(graphs.nodes)))]
        for node in nodes:
            idle = graphs.is_constant(node) or graphs.role[node] in PASSED_ON
            values = [] if idle else graphs.list_written_values(node)
            if node in self._pairs.partner:
                for value in values:
                    partner.setdefault((graphs.side_of_node(node), hashes[value]), node)
            elif values and node not in self._settled:
                twin = partner.get((graphs.side_of_node(node), hashes[values[0]]))
                if twin is not None:
                    self._settle_nodes(node, twin)
                    self._repeated |= set(self._members[self._find_root(twin)])

    def _set_apart(self) -> dict[int, str]:
        """Name what stays out of fusions: constants, arithmetic of shapes, the dead."""
        graphs, live = self._graphs, self._graphs.find_live_nodes()
        reasons = {}
        for node in range(len(graphs.nodes)):
            if node in self._settled:
                continue
            if node not in live:
                reasons[node] = "nothing depends on it"
            elif graphs.is_constant(node):
                reasons[node] = "a constant"
            elif graphs.shapely[node]:
                reasons[node] = "arithmetic of shapes"
        return reasons

    def _follow_channels(self, layer: int) -> None:
        """Give a layer that changed what scales and shifts its channels behind it."""
        graphs = self._graphs
        if graphs.role[layer] not in _LAYERS or not self._may_absorb(layer):
            return
        node = layer
        while len(behind := set(self._list_consumers(node))) == 1:
            (node,) = behind
            fixed = [graphs.constants.get(v) for v in graphs.reads[node] if graphs.fixed[v]]
            linear = graphs.role[node] in _LINEAR and len(fixed) == 1
            many = linear and fixed[0] is not None and fixed[0].size > 1
            if node in self._settled or not (many or graphs.role[node] == "BatchNormalization"):
                return
            self._settle_nodes(layer, node)

    def _join_parts(self) -> list[list[int]]:
        """Join connected nodes without a partner, kind by kind, and return those to place."""
        role = self._graphs.role
        free = [n for n in range(len(role)) if n not in self._settled and role[n] not in PASSED_ON]

        def kind(node: int) -> tuple[str, bool]:
            return self._apart.get(node, ""), role[node] in QUANTIZE

        for node in reversed(free):
            near = [n for n in self._list_consumers(node) if n not in self._settled]
            near = [n for n in near if kind(n) == kind(node)]
            # What several groups read belongs to none of them, but for constants and the like.
            if node in self._apart or len({self._find_root(n) for n in near}) == 1:
                for reader in near:
                    self._join_groups(node, reader)
        parts: dict[int, list[int]] = defaultdict(list)
        for node in free:
            if node not in self._apart:
                parts[self._find_root(node)].append(node)
        return list(parts.values())

    def _find_borders(self, part: Sequence[int]) -> tuple[set[str], set[str]]:
        """Return the groups before and behind a part; the model's inputs and outputs count too."""
        graphs, side, inside = self._graphs, self._graphs.side_of_node(part[0]), set(part)
        inputs, results = self._places[side], self._places[2 + side]
        earlier = {n for node in part for n in self._list_producers(node)} - inside
        later = {n for node in part for n in self._list_consumers(node)} - inside
        before = {str(self._find_root(n)) for n in earlier}
        behind = {str(self._find_root(n)) for n in later}
        for node in part:
            written = graphs.list_written_values(node)
            before |= {f"in {inputs[v]}" for v in graphs.list_data(node) if v in inputs}
            behind |= {f"out {results[v]}" for v in written if v in results}
        return before, behind

    def _absorb_parts(self, parts: Sequence[Sequence[int]]) -> None:
        """Give what is on one side only to what changed beside it: node by node, as data flows."""
        inner = []
        for part in parts:
            roles = {self._graphs.role[node] for node in part}
            if roles <= {"Cast", *QUANTIZE} or roles & LAYOUT:
                if (taker := self._find_absorber(part)) is not None:
                    self._settle_nodes(*part, taker)
                continue
            inner.append(part)
            for node in part:
                self._root[node], self._members[node] = node, [node]
                self._counts[node] = _SIDES[self._graphs.side_of_node(node)]
        for part in inner:
            for node in part:
                self._assign_node(node, self._sort_by_depth(node)[:1], behind=False)
            for node in reversed(part):
                self._assign_node(node, sorted(self._list_consumers(node)), behind=True)
            for node in part:
                self._assign_node(node, self._sort_by_depth(node), behind=False)
            unplaced = {node for node in part if node not in self._settled}
            for node in unplaced:
                for reader in unplaced.intersection(self._list_consumers(node)):
                    self._join_groups(node, reader)

    def _assign_node(self, node: int, near: Sequence[int], *, behind: bool) -> None:
        if node in self._settled or (not behind and self._graphs.role[node] in _AHEAD):
            return
        taker = next((n for n in near if n in self._settled and self._may_absorb(n)), None)
        if taker is not None:
            self._settle_nodes(node, taker)

    def _sort_by_depth(self, node: int) -> list[int]:
        """Return the nodes before one, that on the longest way first."""
        return sorted(self._list_producers(node), key=lambda n: (-self._layers[n], -n))

    def _find_absorber(self, part: Sequence[int]) -> int | None:
        """Return a node of the group that conversions are a part of.

        Pairs go with operators that take integers, others where one changed group is around them.
        """
        graphs, members = self._graphs, set(part)
        side = graphs.side_of_node(part[0])
        before = [n for node in part for n in self._list_producers(node) if n not in members]
        behind = [n for node in part for n in self._list_consumers(node) if n not in members]
        if not {graphs.role[node] for node in part} <= QUANTIZE:
            around = {self._find_root(n) for n in (*before, *behind)}
            inside = len(around) == 1 and before and behind and self._may_absorb(before[0])
            return before[0] if inside else None
        for near in (*behind, *before):
            group = self._members[self._find_root(near)]
            opposite = [n for n in group if graphs.side_of_node(n) != side]
            if any(is_integer_operator(graphs.op[n]) for n in opposite):
                return near
        return None

    def _split_sides(self, members: Iterable[int]) -> tuple[list[int], list[int]]:
        ordered, first = sorted(members), self._graphs.first
        return [n for n in ordered if n < first], [n for n in ordered if n >= first]

    def _may_absorb(self, node: int) -> bool:
        """Say whether a group differs so that it may hold what is missing on the other side."""
        root = self._find_root(node)
        if self._counts[root] != (1, 1):
            return all(self._counts[root])
        a, b = self._split_sides(self._members[root])
        changes = self._pairs.list_changes(a[0], b[0])
        return any(c.startswith(_ABSORBING) or "reordered" in c for c in changes)

    def list_groups(self) -> list[Group]:
        """Return the groups in the order of the first model, then of the second."""
        members = [nodes for _, nodes in sorted(self._members.items())]
        return [self._describe_group(*self._split_sides(nodes)) for nodes in members]

    def _describe_group(self, a: list[int], b: list[int]) -> Group:
        pairs = self._pairs
        first, second = spell_operators(self._graphs, a), spell_operators(self._graphs, b)
        ids = tuple(a), tuple(n - self._graphs.first for n in b)
        if not a or not b:
            why = self._apart.get((a or b)[0], "")
            return Group("removed" if a else "added", *ids, first or second, (why,) if why else ())
        if len(a) == len(b) == 1:
            changes = pairs.list_changes(a[0], b[0])
            sources = self._list_sources(a[0]), self._list_sources(b[0])
            if a[0] not in pairs.exact and sources[0] - sources[1] and sources[1] - sources[0]:
                changes += ("inputs",)  # they read what does not stand for each other
            precise = pairs.is_retyped(a[0], b[0], changes)
            kind: Kind = "retyped" if precise else "changed" if changes else "matched"
            return Group(kind, *ids, first if first == second else f"{first} -> {second}", changes)
        kind = "fused" if len(a) > len(b) else "split" if len(a) < len(b) else "replaced"
        merged = {*a, *b} <= self._repeated
        changes = ("equal nodes merged",) if merged else ()
        return Group(kind, *ids, f"{first} -> {second}", changes)

    def _list_sources(self, node: int) -> set[str]:
        """Name the groups that make the data of a node; shapes given to it do not count."""
        shapely = self._graphs.shapely
        near = [n for n in self._list_producers(node) if shapely[node] or not shapely[n]]
        return {self._find_source(n) for n in near} | set(self._list_inputs(node))

    def _list_inputs(self, node: int) -> Iterator[str]:
        inputs = self._places[self._graphs.side_of_node(node)]
        return (f"in {inputs[v]}" for v in self._graphs.list_data(node) if v in inputs)

    def _find_source(self, node: int) -> str:
        """Name the group behind nodes that the other side does not have."""
        for _ in range(_CANDIDATES):
            if all(self._counts[self._find_root(node)]):
                break
            if not (earlier := self._list_producers(node)):
                return next(self._list_inputs(node), str(self._find_root(node)))
            node = earlier[0]
        return str(self._find_root(node))
