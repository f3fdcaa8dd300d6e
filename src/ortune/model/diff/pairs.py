"""Which node of one model is which of another: by computation, weights, names and place.

What computes the same from the same is found by digests, whatever the names. Where the models
part, weights that are equal after a known transformation say which nodes play the same role, and
from there pairs grow along the graph, the best evidence first, over a few nodes that have none.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from ortune.model.diff.graphs import Graphs, matched
from ortune.model.diff.hashes import Hashes
from ortune.model.diff.operators import COMMUTATIVE, LAYOUT, PASSED_ON, QUANTIZE, quantizing
from ortune.model.diff.weight_pairs import classes, equal, readers, reordered, scaled
from ortune.model.diff.weights import relation

_REACH = 5
_ENOUGH = 1.2
_SMALL = 64
"""Constants up to this many elements are settings of a node, larger ones its weights."""
_ALIKE = frozenset({"equal", "rounded", "quantized", "scaled", "transposed", "reordered"})


class NodePairs:
    """The nodes of two models that play the same role.

    Attributes:
        partner: Node -> node of the other model, for both.
        exact: Nodes that compute the same as their partners.
        sure: Nodes with evidence of their own: computation, weights or names.
        links: Nodes of other roles that hold the same weight, or make a value of one name.
        hashes: Value -> digest of the computation behind it.
        names_trusted: Names that both models know mean the same.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.partner: dict[int, int] = {}
        self.exact: set[int] = set()
        self.sure: set[int] = set()
        self.links: list[tuple[int, int]] = []
        self._relations: dict[tuple[int, int], str] = {}
        hashes = Hashes(graphs)
        self.hashes = hashes.values
        self._by_computation(hashes.nodes)
        self._by_weights()
        self._makers = self._made_by(1)
        self._named = {str(graphs.nodes[node].name): node for node in graphs.of(1)}
        self.names_trusted = self._names_agree()
        if self.names_trusted:
            self._by_names()
        self._grow()

    def relation(self, u: int, v: int) -> str:
        """Return how constant `v` of the second comes from `u`; see `weights.relation`."""
        one, two = self.graphs.constants.get(u), self.graphs.constants.get(v)
        if (u, v) not in self._relations:
            told = relation(one, two) if one is not None and two is not None else ""
            self._relations[u, v] = told
        return self._relations[u, v]

    def slots(self, a: int, b: int) -> list[tuple[int, int]]:
        """Return what two nodes read side by side; operands of a sum may have changed places."""
        left, right = self.graphs.reads[a], self.graphs.reads[b]
        if len(left) == len(right) == 2 and self.graphs.op[a] in COMMUTATIVE:
            fixed = [[self.graphs.fixed[v] for v in side] for side in (left, right)]
            if fixed[0] == fixed[1][::-1] != fixed[1]:
                right = right[::-1]
        return list(zip(left, right, strict=False))

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs, the first model's node first."""
        return [(a, b) for a, b in self.partner.items() if not self.graphs.side(a)]

    def fit(self, a: int, b: int) -> bool | None:
        """Say whether two nodes' weights have as many elements; None where there are none."""
        if self._blocked(a) or self._blocked(b):
            return None
        held = self.graphs.constants
        sizes = [
            (held[u].size, held[v].size)
            for u, v in self.slots(a, b)
            if u in held and v in held and held[u].size > _SMALL
        ]
        return all(left == right for left, right in sizes) if sizes else None

    def _pair(self, a: int, b: int, *, sure: bool = True, exact: bool = False) -> None:
        self.partner[a], self.partner[b] = b, a
        self.sure |= {a, b} if sure else set()
        self.exact |= {a, b} if exact else set()

    def _by_computation(self, hashes: Sequence[str]) -> None:
        """Pair nodes of one digest: those of one name, then in order."""
        nodes = self.graphs.nodes
        keyed = ((digest, node) for node, digest in enumerate(hashes))
        for left, right in classes(self.graphs, keyed):
            for a, b in matched(left, right, lambda node: nodes[node].name):
                self._pair(a, b, exact=True)

    def _by_weights(self) -> None:
        """Pair nodes by weights that only one node on either side reads.

        Those with such a weight in common that play other roles are linked.
        """
        left = list(readers(self.graphs))
        for way in (equal, scaled, reordered):
            found = way(self.graphs, left)
            for a, b in found:
                role = self.graphs.role[a] == self.graphs.role[b]
                if role and a not in self.partner and b not in self.partner:
                    self._pair(a, b)
                elif self.partner.get(a) != b:
                    self.links.append((a, b))
            seen = {node for pair in found for node in pair} | self.partner.keys()
            left = [(value, node) for value, node in left if node not in seen]

    def _names_agree(self) -> bool:
        """Say whether names mean the same: whether what is known otherwise agrees with them."""
        role, partner = self.graphs.role, self.partner
        named = [(a, b) for a in self.graphs.of(0) for b in {*self._of_name(a), self._called(a)}]
        named = [(a, b) for a, b in named if b >= 0]
        paired = [(a, b) for a, b in named if a in partner or b in partner]
        # A runtime gives what it fused the name of the last of it: no evidence against the pair.
        agree = [partner.get(a) == b or role[a] != role[b] for a, b in paired]
        fit = [self.fit(a, b) for a, b in named if role[a] == role[b]]
        known = sum(partner.get(a) == b and self.fit(a, b) is True for a, b in paired)
        least = min(len(self.graphs.of(0)), len(self.graphs.of(1)))
        fits = known >= 4 or fit.count(True) >= fit.count(False)
        alike = 2 * len(fit) >= len(named) or any(map(self._blocked, range(len(role))))
        most = sum(agree) >= 0.9 * len(agree)
        return len(named) >= 0.2 * least and most and fits and alike

    def _by_names(self) -> None:
        """Pair by name, and link what makes a value of one name in another role."""
        role, op = self.graphs.role, self.graphs.op
        others = []
        for a in self.graphs.of(0):
            if a in self.partner:
                continue
            by_value = self._of_name(a)
            for b in (*by_value, self._called(a)):
                if b >= 0 and role[a] == role[b]:
                    if a not in self.partner and b not in self.partner:
                        self._pair(a, b)
                elif b in by_value:
                    others.append((a, b))
        for a, b in others:
            self._by_chain(a, b)
            idle = PASSED_ON | LAYOUT | {"Cast"}
            if not (quantizing(op[a]) or quantizing(op[b])):
                idle |= QUANTIZE
            if not {role[a], role[b]} & idle:
                self.links.append((a, b))

    def _by_chain(self, a: int, b: int) -> None:
        """Pair the heads of two chains that make a value of one name: what is behind is fused."""
        for node, end in ((a, b), (b, a)):
            for _ in range(_REACH):
                if node < 0 or node in self.partner or end in self.partner:
                    break
                if self.graphs.role[node] == self.graphs.role[end]:
                    self._pair(*sorted((node, end)))
                    return
                node = max(self.graphs.before(node), default=-1)

    def _made_by(self, which: int) -> dict[str, int]:
        return {name: node for node in self.graphs.of(which) for name in self._labels(node)}

    def _labels(self, node: int) -> list[str]:
        labels = self.graphs.labels
        return [labels[value] for value in self.graphs.made(node) if labels[value]]

    def _of_name(self, a: int) -> list[int]:
        """Return the second model's nodes that make values of the names that a node's have."""
        return [self._makers[name] for name in self._labels(a) if name in self._makers]

    def _called(self, a: int) -> int:
        """Return the second model's node of a node's name, -1 for none."""
        return self._named.get(str(self.graphs.nodes[a].name), -1)

    def _blocked(self, node: int) -> bool:
        """Say whether a node's weights are padded to blocks of channels."""
        return self.graphs.op[node].startswith("com.microsoft.nchwc")

    def _grow(self) -> None:
        """Pair what lies around pairs, the best evidence first."""
        heap: list[tuple[float, int, int]] = []
        gaps: dict[tuple[int, int], int] = {}

        def offer(a: int, b: int) -> None:
            for c, d, gap in self._around(a, b):
                gaps[c, d] = min(gap, gaps.get((c, d), gap))
                heapq.heappush(heap, (-self._score(c, d, gaps[c, d]), c, d))

        for a, b in self.pairs():
            offer(a, b)
        while heap:
            score, a, b = heapq.heappop(heap)
            if a in self.partner or b in self.partner:
                continue
            now = -self._score(a, b, gaps[a, b])
            if now > score + 0.05 and heap and now > heap[0][0]:
                heapq.heappush(heap, (now, a, b))
            elif -now >= _ENOUGH:
                self._pair(a, b, sure=False)
                offer(a, b)

    def _around(self, a: int, b: int) -> Iterator[tuple[int, int, int]]:
        """Yield candidates around a pair, each with the nodes that lie between."""
        for near in (self.graphs.after, self.graphs.before):
            left, right = self._reach(a, near), self._reach(b, near)
            roles: dict[str, list[int]] = defaultdict(list)
            for d in right:
                roles[self.graphs.role[d]].append(d)
            for c in left:
                for d in roles.get(self.graphs.role[c], ()):
                    yield c, d, left[c] + right[d]

    def _reach(self, start: int, near: Callable[[int], list[int]]) -> dict[int, int]:
        """Return nodes without a partner -> nodes passed on the way; copies are free."""
        found: dict[int, int] = {}
        pending = [(0, node) for node in near(start)]
        heapq.heapify(pending)
        while pending and len(found) < 40:
            gap, node = heapq.heappop(pending)
            if node in found or node in self.partner:
                continue
            found[node] = gap
            step = gap + (self.graphs.role[node] not in PASSED_ON)
            if step <= _REACH:
                for one in near(node):
                    heapq.heappush(pending, (step, one))
        return found

    def _score(self, a: int, b: int, gap: int) -> float:
        """Weigh the evidence that two nodes play one role: settings, constants, neighbours."""
        graphs = self.graphs
        told = graphs.settings[a].items(), graphs.settings[b].items()
        apart = len(told[0] ^ told[1]) / max(1, len(told[0] | told[1]))
        score = 1.5 - 0.15 * gap - 0.5 * apart + 0.2 * (graphs.op[a] == graphs.op[b])
        score += sum(self._constants(a, b, u, v) for u, v in self.slots(a, b))
        for near, worth in ((graphs.before, 1.0), (graphs.after, 0.5)):
            wanted = {self.partner[n] for n in near(a) if n in self.partner}
            paired = {n for n in near(b) if n in self.partner}
            score += worth * min(2, len(wanted & paired))
            score -= worth * min(len(wanted - paired), len(paired - wanted), 2)
        if self.names_trusted and (
            graphs.nodes[a].name == graphs.nodes[b].name
            or set(self._labels(a)) & set(self._labels(b))
        ):
            score += 1.5
        uneven = abs(len(graphs.data(a)) - len(graphs.data(b)))
        return score - 2 * uneven * (graphs.role[a] in COMMUTATIVE)

    def _constants(self, a: int, b: int, u: int, v: int) -> float:
        """Judge the constants of one slot."""
        left, right = self.graphs.constants.get(u), self.graphs.constants.get(v)
        if left is None or right is None:
            return 0.0
        if left.size <= _SMALL or right.size <= _SMALL:
            return 0.5 if self.relation(u, v) in ("equal", "rounded") else -0.2
        if left.size != right.size:
            return 0.0 if self._blocked(a) or self._blocked(b) else -1.5
        return 2.5 if self.relation(u, v).rpartition(", ")[2] in _ALIKE else -0.5
