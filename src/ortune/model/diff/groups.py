"""What became of which nodes: groups of nodes of two models around the pairs of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ortune.model.diff.changes import by_channel, compared, retyped, spelled
from ortune.model.diff.operators import PASSED_ON, QUANTIZE, quantizing
from ortune.model.diff.pairs import NodePairs
from ortune.model.diff.result import Group, Kind

_AHEAD = frozenset({"Pad", "Transpose", "Reshape", "Concat", "Squeeze", "Unsqueeze", "Slice"})
"""What is rather folded into the node behind it than into the one before."""
_ABSORBING = ("operator", "attributes", "weights: scaled", "weights: changed")
_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul"})


def groups(pairs: NodePairs, *, related: bool = True) -> list[Group]:
    """Put every node of both models into one group.

    A node without a partner goes with the pair that changed beside it: what did not change can
    have absorbed nothing. Those of both sides in the same gap belong together. What depends on
    constants alone, or counts with shapes, is a group of its own.

    Args:
        pairs: Of both models.
        related: Take the place of a node as evidence too.
    """
    return _Grouping(pairs, related).result()


class _Grouping:
    """Sets of nodes that are joined (union-find), and the nodes that have found theirs."""

    def __init__(self, pairs: NodePairs, related: bool) -> None:
        self._pairs, self._graphs = pairs, pairs.graphs
        count = len(self._graphs.nodes)
        self._root = list(range(count))
        self._members = {node: [node] for node in range(count)}
        self._known: set[int] = set()
        self._repeated: set[int] = set()
        self._layers = self._graphs.layers()
        for a, b in pairs.pairs():
            if related or a in pairs.sure:
                self._settle(a, b)
        if related:
            for a, b in pairs.links:
                if not {a, b} <= self._known:
                    self._settle(a, b)
            self._join_repeated()
        self._apart = self._set_apart()
        if related:
            for node in list(pairs.partner):
                self._follow(node)
        parts = self._parts()
        if related:
            for part in self._gaps(parts):
                self._absorb(part)

    def _find(self, node: int) -> int:
        while self._root[node] != node:
            self._root[node] = self._root[self._root[node]]
            node = self._root[node]
        return node

    def _join(self, one: int, two: int) -> None:
        first, second = sorted((self._find(one), self._find(two)))
        if first != second:
            self._root[second] = first
            self._members[first] += self._members.pop(second)

    def _settle(self, *nodes: int) -> None:
        for node in nodes:
            self._join(node, nodes[0])
        self._known |= set(nodes)

    def _before(self, node: int) -> list[int]:
        """Return the nodes before one, seen through copies that the other side does not have."""
        return self._through(self._graphs.before(node), self._graphs.before)

    def _after(self, node: int) -> list[int]:
        return self._through(self._graphs.after(node), self._graphs.after)

    def _through(self, near: list[int], further: Callable[[int], list[int]]) -> list[int]:
        role = self._graphs.role
        copies = [n for n in near if n not in self._known and role[n] in PASSED_ON]
        behind = [n for copy in copies for n in self._through(further(copy), further)]
        return [n for n in near if n not in copies] + behind

    def _join_repeated(self) -> None:
        """What computes the same as a pair was merged with it, or made by taking it apart."""
        graphs, hashes = self._graphs, self._pairs.hashes
        partner: dict[tuple[int, str], int] = {}

        def computing(node: int) -> list[int]:
            idle = graphs.constant(node) or graphs.role[node] in PASSED_ON
            return [] if idle else graphs.made(node)

        for node in self._pairs.partner:
            for value in computing(node):
                partner.setdefault((graphs.side(node), hashes[value]), node)
        for node in range(len(graphs.nodes)):
            if node not in self._known and (made := computing(node)):
                found = partner.get((graphs.side(node), hashes[made[0]]))
                if found is not None:
                    self._settle(node, found)
                    self._repeated |= set(self._members[self._find(found)])

    def _set_apart(self) -> dict[int, str]:
        """Name what stays out of fusions: constants, arithmetic of shapes, the dead."""
        graphs, live = self._graphs, self._graphs.live()
        found = {}
        for node in range(len(graphs.nodes)):
            if node in self._known:
                continue
            if node not in live:
                found[node] = "nothing depends on it"
            elif graphs.constant(node):
                found[node] = "a constant"
            elif graphs.shapely[node]:
                found[node] = "arithmetic of shapes"
        return found

    def _follow(self, layer: int) -> None:
        """Give a layer that changed what scales and shifts its channels behind it."""
        if self._graphs.role[layer] not in _LAYERS or not self._changed(layer):
            return
        node = layer
        while len(behind := set(self._after(node))) == 1:
            (node,) = behind
            if node in self._known or not by_channel(self._graphs, node):
                return
            self._settle(layer, node)

    def _parts(self) -> list[list[int]]:
        """Join connected nodes without a partner, kind by kind, and return those to place."""
        role = self._graphs.role
        free = [n for n in range(len(role)) if n not in self._known and role[n] not in PASSED_ON]

        def kind(node: int) -> tuple[str, bool]:
            return self._apart.get(node, ""), role[node] in QUANTIZE

        for node in reversed(free):
            near = [n for n in self._after(node) if n not in self._known and kind(n) == kind(node)]
            # What several groups read belongs to none of them, but for constants and the like.
            if node in self._apart or len({self._find(n) for n in near}) == 1:
                for one in near:
                    self._join(node, one)
        found: dict[int, list[int]] = defaultdict(list)
        for node in free:
            if node not in self._apart:
                found[self._find(node)].append(node)
        return list(found.values())

    def _gaps(self, parts: list[list[int]]) -> list[list[int]]:
        """Join parts of both sides that lie between the same groups; return the others."""
        borders = {part[0]: self._borders(part) for part in parts}
        second = [part for part in parts if self._graphs.side(part[0])]
        left = []
        for part in parts:
            if self._graphs.side(part[0]):
                continue
            before, behind = borders[part[0]]
            for other in second:
                near, far = borders[other[0]]
                if before & near and behind & far:
                    self._settle(*part, *other)
                    second.remove(other)
                    break
            else:
                left.append(part)
        return left + second

    def _absorb(self, part: Sequence[int]) -> None:
        """Give what is on one side only to what changed beside it: node by node, as data flows."""
        roles = {self._graphs.role[node] for node in part}
        if roles <= {"Cast", *QUANTIZE} or any(role.startswith("Reorder") for role in roles):
            if (taker := self._taker(part)) is not None:
                self._settle(*part, taker)
            return
        for node in part:
            self._root[node], self._members[node] = node, [node]
        for node in part:
            self._give(node, self._deepest(node)[:1], behind=False)
        for node in reversed(part):
            self._give(node, sorted(self._after(node)), behind=True)
        for node in part:
            self._give(node, self._deepest(node), behind=False)
        left = {node for node in part if node not in self._known}
        for node in left:
            for near in left.intersection(self._after(node)):
                self._join(node, near)

    def _give(self, node: int, near: Sequence[int], *, behind: bool) -> None:
        if node in self._known or (not behind and self._graphs.role[node] in _AHEAD):
            return
        taker = next((n for n in near if n in self._known and self._changed(n)), None)
        if taker is not None:
            self._settle(node, taker)

    def _deepest(self, node: int) -> list[int]:
        """Return the nodes before one, that on the longest way first."""
        return sorted(self._before(node), key=lambda n: (-self._layers[n], -n))

    def _borders(self, part: Sequence[int]) -> tuple[set[str], set[str]]:
        """Return the groups before and behind a part; the model's inputs and outputs count too."""
        before, behind = self._beside(part)
        side = self._graphs.side(part[0])
        given, wanted = self._graphs.inputs[side], self._graphs.results[side]
        sources = [v for node in part for v in self._graphs.data(node) if v in given]
        ends = [v for node in part for v in self._graphs.made(node) if v in wanted]
        return (
            {str(self._find(n)) for n in before} | {f"in {given.index(v)}" for v in sources},
            {str(self._find(n)) for n in behind} | {f"out {wanted.index(v)}" for v in ends},
        )

    def _beside(self, part: Sequence[int]) -> list[list[int]]:
        """Return the nodes before a part, and those behind it."""
        ways = (self._before, self._after)
        return [[n for node in part for n in way(node) if n not in part] for way in ways]

    def _taker(self, part: Sequence[int]) -> int | None:
        """Return a node of the group that conversions are a part of."""
        before, behind = self._beside(part)
        if {self._graphs.role[node] for node in part} <= QUANTIZE:
            near = (*behind, *before)
            return next((n for n in near if self._takes_integers(n, part[0])), None)
        around = {self._find(n) for n in (*before, *behind)}
        inside = len(around) == 1 and before and behind and self._changed(before[0])
        return before[0] if inside else None

    def _takes_integers(self, node: int, seen_from: int) -> bool:
        """Say whether the other side of a node's group takes integers for numbers."""
        side = self._graphs.side(seen_from)
        members = [n for n in self._members[self._find(node)] if self._graphs.side(n) != side]
        return any(quantizing(self._graphs.op[n]) for n in members)

    def _sides(self, members: Iterable[int]) -> tuple[list[int], list[int]]:
        first = self._graphs.first
        every = sorted(members)
        return [n for n in every if n < first], [n for n in every if n >= first]

    def _changed(self, node: int) -> bool:
        """Say whether a group differs so that it may hold what is missing on the other side."""
        a, b = self._sides(self._members[self._find(node)])
        if len(a) != 1 or len(b) != 1:
            return bool(a and b)
        changes = compared(self._pairs, a[0], b[0])
        return any(one.startswith(_ABSORBING) or "reordered" in one for one in changes)

    def result(self) -> list[Group]:
        """Return the groups in the order of the first model, then of the second."""
        return [self._group(*self._sides(own)) for _, own in sorted(self._members.items())]

    def _group(self, a: list[int], b: list[int]) -> Group:
        left, right = spelled(self._graphs, a), spelled(self._graphs, b)
        pattern = f"{left} -> {right}" if left != right else left
        ids = tuple(a), tuple(n - self._graphs.first for n in b)
        if not a or not b:
            why = self._apart.get((a or b)[0], "")
            return Group("removed" if a else "added", *ids, left or right, (why,) if why else ())
        if len(a) == len(b) == 1:
            changes = compared(self._pairs, a[0], b[0]) + self._rewired(a[0], b[0])
            precise = retyped(self._graphs, a[0], b[0], changes)
            kind: Kind = "retyped" if precise else "changed" if changes else "matched"
            return Group(kind, *ids, pattern, changes)
        kind = "fused" if len(a) > len(b) else "split" if len(a) < len(b) else "replaced"
        merged = {*a, *b} <= self._repeated
        pattern = f"{left} -> {right}"
        return Group(kind, *ids, pattern, ("equal nodes are one",) if merged else ())

    def _rewired(self, a: int, b: int) -> tuple[str, ...]:
        """Say whether partners read what does not stand for each other."""
        if a in self._pairs.exact:
            return ()
        left, right = self._sources(a), self._sources(b)
        return ("inputs",) if left - right and right - left else ()

    def _sources(self, node: int) -> set[str]:
        """Name the groups that make the data of a node; shapes given to it do not count."""
        shapely = self._graphs.shapely
        near = [n for n in self._before(node) if shapely[node] or not shapely[n]]
        return {self._source(n) for n in near} | set(self._given(node))

    def _given(self, node: int) -> list[str]:
        inputs = self._graphs.inputs[self._graphs.side(node)]
        return [f"in {inputs.index(v)}" for v in self._graphs.data(node) if v in inputs]

    def _source(self, node: int) -> str:
        """Name the group behind nodes that the other side does not have."""
        for _ in range(40):
            if all(self._sides(self._members[self._find(node)])):
                break
            if not (earlier := self._before(node)):
                return next(iter(self._given(node)), str(self._find(node)))
            node = earlier[0]
        return str(self._find(node))
