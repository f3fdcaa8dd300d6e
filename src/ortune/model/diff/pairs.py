"""Which node of one model is which node of another: by computation, weights, names and place.

What computes the same from the same is found by digests, whatever the names. Where the models
part, weights that are equal after a known transformation say which nodes play the same role, and
from there pairs grow along the graph, the best evidence first, over a few nodes that have none.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ortune.model.diff.hashes import Hashes, interface, matched
from ortune.model.diff.operators import COMMUTATIVE, LAYOUT, PASSED_ON, QUANTIZE, quantizing
from ortune.model.diff.side import Side
from ortune.model.diff.weights import like, relation, unit

_REACH = 5
_ENOUGH = 1.2
_SMALL = 64
"""Constants up to this many elements are settings of a node, larger ones its weights."""
_TELLING = 16
"""Weights from this many elements on tell one node from another."""


class Pairs:
    """The nodes of two models that play the same role.

    Attributes:
        of_a: Node of the first -> node of the second.
        of_b: Node of the second -> node of the first.
        exact: Nodes of the first that compute the same as their partners.
        sure: Nodes of the first with evidence of their own: computation, weights or names.
        links: Nodes of other roles that hold the same weight, or make a value of one name.
        hashes: Value -> digest of the computation behind it, for the first and for the second.
        names_trusted: Names that both models know mean the same.
    """

    def __init__(self, one: Side, two: Side) -> None:
        self.one, self.two = one, two
        self.of_a: dict[int, int] = {}
        self.of_b: dict[int, int] = {}
        self.exact: set[int] = set()
        self.sure: set[int] = set()
        self.links: list[tuple[int, int]] = []
        self.names_trusted = False
        self._relations: dict[tuple[int, int], str] = {}
        labels = interface(one, two)
        first, second = (
            Hashes(side, label) for side, label in zip((one, two), labels, strict=True)
        )
        self.hashes = first.values, second.values
        self._classes(first.nodes, second.nodes, exact=True)
        loose = [
            Hashes(side, label, loose=True) for side, label in zip((one, two), labels, strict=True)
        ]
        shared = self._weights()
        self._trust()
        self._classes(loose[0].nodes, loose[1].nodes, exact=False)
        self._link(shared)
        self._grow()

    def relation(self, a: int, b: int) -> str:
        """Return how constant `b` comes from constant `a`; see `diff_weights.relation`."""
        key = a, b
        if key not in self._relations:
            held = self.one.held.get(a), self.two.held.get(b)
            self._relations[key] = (
                relation(held[0], held[1]) if held[0] is not None and held[1] is not None else ""
            )
        return self._relations[key]

    def slots(self, a: int, b: int) -> list[tuple[int, int]]:
        """Return what two nodes read side by side; operands of a sum may have changed places."""
        left, right = self.one.reads[a], self.two.reads[b]
        if len(left) == len(right) == 2 and self.one.op[a] in COMMUTATIVE:
            fixed = [self.one.constant[v] for v in left], [self.two.constant[v] for v in right]
            if fixed[0] == fixed[1][::-1]:
                right = right[::-1] if fixed[0] != fixed[1] else right
        return list(zip(left, right, strict=False))

    def pair(self, a: int, b: int, *, sure: bool = True, exact: bool = False) -> None:
        """Make two nodes partners."""
        self.of_a[a], self.of_b[b] = b, a
        if sure:
            self.sure.add(a)
        if exact:
            self.exact.add(a)

    def _classes(self, first: Sequence[str], second: Sequence[str], *, exact: bool) -> None:
        """Pair nodes of one digest: those of one name, then in order.

        Without equal weights only classes that are equally large on both sides count.
        """
        classes: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for which, (hashes, known) in enumerate(((first, self.of_a), (second, self.of_b))):
            for node, digest in enumerate(hashes):
                if node not in known:
                    classes[digest][which].append(node)
        for left, right in classes.values():
            if not left or not right or (not exact and len(left) != len(right)):
                continue
            named = {self.two.nodes[b].name: b for b in right}
            same = [(a, named[n]) for a in left if (n := self.one.nodes[a].name) in named]
            taken = {a for a, _ in same}, {b for _, b in same}
            rest = zip(
                [a for a in left if a not in taken[0]],
                [b for b in right if b not in taken[1]],
                strict=False,
            )
            for a, b in (*same, *rest):
                self.pair(a, b, exact=exact)

    def _weights(self) -> list[tuple[int, int]]:
        """Pair nodes by weights that only one node on either side reads.

        Returns:
            Nodes with such a weight in common that play other roles.
        """
        one, two = (list(self._readers(side)) for side in (self.one, self.two))
        by_content: dict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(
            lambda: ([], [])
        )
        for which, held in enumerate((one, two)):
            for value, node in held:
                weight = (self.one, self.two)[which].held[value]
                by_content[weight.digest, str(weight.scale is None)][which].append(node)
        shared = []
        found: set[tuple[int, int]] = set()
        for left, right in by_content.values():
            if len(set(left)) == 1 and len(set(right)) == 1:
                found.add((left[0], right[0]))
        known = {a for a, _ in found}, {b for _, b in found}
        rest = (
            [(v, n) for v, n in one if n not in known[0] and n not in self.of_a],
            [(v, n) for v, n in two if n not in known[1] and n not in self.of_b],
        )
        near = _near(self.one, self.two, *rest)
        taken = {a for a, _ in near}, {b for _, b in near}
        rest = (
            [(v, n) for v, n in rest[0] if n not in taken[0]],
            [(v, n) for v, n in rest[1] if n not in taken[1]],
        )
        for a, b in (*sorted(found), *near, *_reordered(self.one, self.two, *rest)):
            if a in self.of_a or b in self.of_b:
                if self.of_a.get(a) != b:
                    shared.append((a, b))
            elif self.one.role[a] == self.two.role[b]:
                self.pair(a, b)
            else:
                shared.append((a, b))
        return shared

    def _readers(self, side: Side) -> Iterator[tuple[int, int]]:
        """Yield weights that tell nodes apart, each with the one node that computes with it."""
        for value, held in side.held.items():
            if held.size < _TELLING or (not held.floating and held.tensor.dtype.itemsize > 1):
                continue
            users = {user for user, _ in side.users[value] if not side.fixed(user)}
            if len(users) == 1:
                yield value, users.pop()

    def _trust(self) -> None:
        """Find out whether names mean the same: whether pairs that were found otherwise agree."""
        named = {str(node.name): at for at, node in enumerate(self.two.nodes)}
        made = _made(self.two)
        agree = total = alike = common = heavy = fit = known = 0
        for a in range(len(self.one.nodes)):
            own = named.get(str(self.one.nodes[a].name), -1)
            for b in {*_named(self.one, a, made), own} - {-1}:
                same = self.one.role[a] == self.two.role[b]
                common, alike = common + 1, alike + same
                told = self.fit(a, b) if same else None
                size = self._elements(a) if told is not None else 0
                heavy, fit = heavy + size, fit + size * (told is True)
                if a in self.of_a or b in self.of_b:
                    total += 1
                    agree += self.of_a.get(a) == b or not same
                    known += self.of_a.get(a) == b and told is True
        least = min(len(self.one.nodes), len(self.two.nodes))
        blocked = any(_blocked(side, n) for side in (self.one, self.two) for n in _all(side))
        self.names_trusted = (
            common >= 0.2 * least
            and agree >= 0.9 * total
            and (known >= 4 or fit >= 0.5 * heavy)
            and alike >= (0.0 if blocked else 0.5) * common
        )

    def _elements(self, a: int) -> int:
        return sum(self.one.held[v].size for v in self.one.reads[a] if v in self.one.held)

    def fit(self, a: int, b: int) -> bool | None:
        """Whether the weights of two nodes have as many elements; None where there are none."""
        if _blocked(self.one, a) or _blocked(self.two, b):
            return None
        sizes = [
            (self.one.held[u].size, self.two.held[v].size)
            for u, v in self.slots(a, b)
            if u in self.one.held and v in self.two.held and self.one.held[u].size > _SMALL
        ]
        return all(left == right for left, right in sizes) if sizes else None

    def _link(self, shared: Iterable[tuple[int, int]]) -> None:
        """Pair by name, and note what has a weight or a name in common in another role."""
        self.links += shared
        if not self.names_trusted:
            return
        made = _made(self.two)
        named = {str(node.name): at for at, node in enumerate(self.two.nodes)}
        others = []
        for a in range(len(self.one.nodes)):
            if a in self.of_a:
                continue
            own = named.get(str(self.one.nodes[a].name), -1)
            by_value = _named(self.one, a, made)
            for b in (*by_value, *([own] if own >= 0 else [])):
                if self.one.role[a] == self.two.role[b]:
                    if a not in self.of_a and b not in self.of_b:
                        self.pair(a, b)
                elif b in by_value:
                    others.append((a, b))
        for a, b in others:
            self._through(a, b)
            roles = {self.one.role[a], self.two.role[b]}
            idle = PASSED_ON | LAYOUT | {"Cast"}
            if not (quantizing(self.one.op[a]) or quantizing(self.two.op[b])):
                idle |= QUANTIZE
            if not roles & idle:
                self.links.append((a, b))

    def _through(self, a: int, b: int) -> None:
        """Pair the heads of two chains that make a value of one name: what is behind is fused."""
        for one, two, start, end, known, others in (
            (self.one, self.two, a, b, self.of_a, self.of_b),
            (self.two, self.one, b, a, self.of_b, self.of_a),
        ):
            node = start
            for _ in range(_REACH):
                if node in known or end in others:
                    break
                if one.role[node] == two.role[end]:
                    left, right = (node, end) if one is self.one else (end, node)
                    self.pair(left, right)
                    return
                node = max(one.before(node), default=-1)
                if node < 0:
                    break

    def _grow(self) -> None:
        """Pair what lies around pairs, the best evidence first."""
        heap: list[tuple[float, int, int]] = []
        tried: set[tuple[int, int]] = set()

        def offer(a: int, b: int, gap: int) -> None:
            if (a, b) not in tried:
                tried.add((a, b))
                heapq.heappush(heap, (-self._score(a, b, gap), a, b))

        gaps: dict[tuple[int, int], int] = {}
        pending = list(self.of_a.items())
        ends = self._ends()
        while True:
            for a, b in pending:
                for c, d, gap in self._around(a, b):
                    gaps[c, d] = min(gap, gaps.get((c, d), gap))
                    tried.discard((c, d))
                    offer(c, d, gaps[c, d])
            for c, d, gap in ends:
                gaps.setdefault((c, d), gap)
                offer(c, d, gap)
            pending, ends = [], []
            while heap:
                score, a, b = heapq.heappop(heap)
                if a in self.of_a or b in self.of_b:
                    continue
                now = -self._score(a, b, gaps[a, b])
                if now > score + 0.05 and heap and now > heap[0][0]:
                    heapq.heappush(heap, (now, a, b))
                    continue
                if -now < _ENOUGH:
                    continue
                self.pair(a, b, sure=False)
                pending = [(a, b)]
                break
            if not pending:
                return

    def _ends(self) -> list[tuple[int, int, int]]:
        """Return candidates at the models' inputs and outputs."""
        one, two = self.one, self.two
        found = []
        for u, v in zip(*matched(one, two, one.inputs, two.inputs), strict=True):
            found += self._among(
                self._reach([n for n, _ in one.users[u]], one, self.of_a, forward=True),
                self._reach([n for n, _ in two.users[v]], two, self.of_b, forward=True),
            )
        for u, v in zip(*matched(one, two, one.results, two.results), strict=True):
            found += self._among(
                self._reach([one.maker[u]], one, self.of_a, forward=False),
                self._reach([two.maker[v]], two, self.of_b, forward=False),
            )
        return found

    def _around(self, a: int, b: int) -> list[tuple[int, int, int]]:
        """Return candidates around a pair, each with the nodes that lie between."""
        found = []
        for forward in (True, False):
            starts = [
                list(side.after(node)) if forward else list(side.before(node))
                for side, node in ((self.one, a), (self.two, b))
            ]
            found += self._among(
                self._reach(starts[0], self.one, self.of_a, forward=forward),
                self._reach(starts[1], self.two, self.of_b, forward=forward),
            )
        return found

    def _among(self, left: dict[int, int], right: dict[int, int]) -> list[tuple[int, int, int]]:
        roles: dict[str, list[int]] = defaultdict(list)
        for b in right:
            roles[self.two.role[b]].append(b)
        return [(a, b, left[a] + right[b]) for a in left for b in roles.get(self.one.role[a], ())]

    def _reach(
        self, starts: Iterable[int], side: Side, known: dict[int, int], *, forward: bool
    ) -> dict[int, int]:
        """Return nodes without a partner -> nodes passed on the way; what only moves is free."""
        found: dict[int, int] = {}
        pending = [(0, node) for node in starts if node >= 0]
        heapq.heapify(pending)
        while pending and len(found) < 40:
            gap, node = heapq.heappop(pending)
            if node in found or node in known:
                continue
            found[node] = gap
            step = gap + (side.role[node] not in PASSED_ON)
            if step <= _REACH:
                for near in side.after(node) if forward else side.before(node):
                    heapq.heappush(pending, (step, near))
        return found

    def _score(self, a: int, b: int, gap: int) -> float:
        one, two = self.one, self.two
        score = 1.0 - 0.15 * gap
        told = one.said[a].items(), two.said[b].items()
        apart = len(told[0] ^ told[1])
        score += 0.5 * (1 - apart / max(1, len(told[0] | told[1]))) + 0.2 * (
            one.op[a] == two.op[b]
        )
        score += self._constants(a, b)
        makers = set(one.before(a)), set(two.before(b))
        users = set(one.after(a)), set(two.after(b))
        for (left, right), worth in ((makers, 1.0), (users, 0.5)):
            to_b = {self.of_a[n] for n in left if n in self.of_a}
            kept = {n for n in right if n in self.of_b}
            score += worth * min(2, len(to_b & kept))
            score -= worth * min(len(to_b - kept), len(kept - to_b), 2)
        if (self.names_trusted and one.nodes[a].name == two.nodes[b].name) or (
            self.names_trusted and set(_outs(one, a)) & set(_outs(two, b))
        ):
            score += 1.5
        uneven = abs(len(one.data(a)) - len(two.data(b)))
        return score - 2 * uneven * (one.role[a] in COMMUTATIVE)

    def _constants(self, a: int, b: int) -> float:
        """Judge the constants of the same slots."""
        score = 0.0
        for u, v in self.slots(a, b):
            left, right = self.one.held.get(u), self.two.held.get(v)
            if left is None or right is None:
                continue
            if left.size <= _SMALL or right.size <= _SMALL:
                score += 0.5 if self.relation(u, v) in ("equal", "rounded") else -0.2
            elif left.size != right.size:
                score -= 0.0 if _blocked(self.one, a) or _blocked(self.two, b) else 1.5
            elif _WORTH.get(self.relation(u, v).rpartition(", ")[2]):
                score += 2.5
            else:
                score -= 0.5
        return score


_WORTH = dict.fromkeys(
    ("equal", "rounded", "quantized", "scaled", "transposed", "reordered"), True
)


def _all(side: Side) -> range:
    return range(len(side.nodes))


def _blocked(side: Side, node: int) -> bool:
    """Whether a node's weights are padded to blocks of channels."""
    return side.op[node].startswith("com.microsoft.nchwc")


def _made(side: Side) -> dict[str, int]:
    return {
        side.labels[value]: node
        for node, made in enumerate(side.writes)
        for value in made
        if value >= 0 and side.labels[value]
    }


def _named(side: Side, node: int, made: dict[str, int]) -> list[int]:
    """Return the nodes that make values of the names that a node's have."""
    return [made[name] for name in _outs(side, node) if name in made]


def _outs(side: Side, node: int) -> list[str]:
    return [side.labels[v] for v in side.writes[node] if v >= 0 and side.labels[v]]


def _near(
    one: Side, two: Side, left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return nodes whose weights are alike but for factors along an axis, and like no others."""
    shapes: dict[tuple[int, ...], tuple[list[tuple[int, int]], list[tuple[int, int]]]]
    shapes = defaultdict(lambda: ([], []))
    for which, (side, found) in enumerate(((one, left), (two, right))):
        for value, node in found:
            if len(side.held[value].shape) > 1 and side.held[value].size >= _SMALL:
                shapes[side.held[value].shape][which].append((value, node))
    made = []
    for first, second in shapes.values():
        if first and second:
            made += _alike(one, two, first, second)
    return made


def _reordered(
    one: Side, two: Side, left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return nodes whose weights hold the same numbers in another order, as no others do."""
    if not left or not right:
        return []
    sizes = {two.held[v].size for v, _ in right} & {one.held[v].size for v, _ in left}
    found: dict[tuple[float, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for which, (side, part) in enumerate(((one, left), (two, right))):
        for value, node in part:
            held = side.held[value]
            if held.size in sizes and held.scale is None:
                found[held.size, *held.moments[:2]][which].append(node)
    pairs = [(a[0], b[0]) for a, b in found.values() if len(a) == len(b) == 1]
    return [(a, b) for a, b in pairs if one.role[a] == two.role[b]]


def _alike(
    one: Side, two: Side, left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    grids = [[one.held[v].grid() for v, _ in left], [two.held[v].grid() for v, _ in right]]
    shape = grids[0][0].shape
    if any(grid.shape != shape for side in grids for grid in side):
        return []
    flat = [np.stack([unit(grid).ravel() for grid in side]) / shape[0] ** 0.5 for side in grids]
    score = np.abs(flat[0] @ flat[1].T)
    found = []
    for a, (_, node) in enumerate(left):
        b = int(score[a].argmax())
        back = int(score[:, b].argmax())
        if back == a and like(grids[0][a], grids[1][b]) > 0.95:
            found.append((node, right[b][1]))
    return found
