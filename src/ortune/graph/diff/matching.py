"""Which nodes of one model became which of another: pairs of nodes, and groups around them.

What computes the same from the same is found by digests, whatever the names. Where the models
part, weights that are equal after a known transformation and names say which nodes play the same
role, and from there pairs grow along the graph. A node without a partner goes with a pair beside
it that changed: what did not change can have absorbed nothing. Nodes of both sides between the
same neighbours belong together.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import onnx_ir as ir

from ortune.graph.diff.graphs import (
    COMMUTATIVE,
    PASSED_ON,
    QUANTIZE,
    Graphs,
    computation_digests,
    is_integer_operator,
    match_in_order,
)
from ortune.graph.diff.weights import classify_relation, match_scaled

_REACH, _CANDIDATES = 5, 40
_ENOUGH = 1.2
"""Evidence from which two neighbours of a pair are a pair."""
_SMALL = 64
"""Constants up to this many elements are settings of a node, larger ones its weights."""
_TELLING = 16
"""Weights from this many elements on tell one node from another."""
_INTEGERS = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4})
_ALIKE = frozenset({"equal", "rounded", "quantized", "scaled", "transposed", "reordered"})
LAYOUT = frozenset({"ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost"})
"""What a runtime adds to hand a tensor to a kernel in another layout or place."""
_FORWARDING = PASSED_ON | QUANTIZE | LAYOUT | {"Cast"}


class NodePairs:
    """The nodes of two models that play the same role."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.partner: dict[int, int] = {}  # node -> node of the other model, for both
        self.exact: set[int] = set()  # nodes that compute the same as their partners
        self.sure: set[int] = (
            set()
        )  # those with evidence of their own: computation, weights, names
        # Nodes of other roles that make a value of one name, as the last of a fusion does.
        self.ends: list[tuple[int, int]] = []
        self._relations: dict[tuple[int, int], str] = {}
        self.hashes, nodes = computation_digests(graphs)  # of values, of nodes
        for first, second in self._group_by_key((digest, n) for n, digest in enumerate(nodes)):
            for a, b in match_in_order(first, second, lambda node: graphs.nodes[node].name):
                self._pair_nodes(a, b, exact=True)
        self._pair_by_weights()
        self.names_trusted = self._pair_by_names()  # names that both know mean the same
        self._pair_around_pairs()

    def _pair_around_pairs(self) -> None:
        """Pair what lies around pairs, the best evidence first, over a few nodes without one."""
        graphs, partner = self.graphs, self.partner
        heap: list[tuple[float, int, int]] = []

        def reach(start: int, near: Callable[[int], list[int]]) -> dict[int, int]:
            """Return nodes without a partner -> nodes passed on the way; copies are free."""
            passed: dict[int, int] = {}
            pending = [(0, node) for node in near(start)]
            heapq.heapify(pending)
            while pending and len(passed) < _CANDIDATES:
                gap, node = heapq.heappop(pending)
                if node not in passed and node not in partner:
                    passed[node] = gap
                    gap += graphs.role[node] not in PASSED_ON
                    for further in near(node) if gap <= _REACH else ():
                        heapq.heappush(pending, (gap, further))
            return passed

        def offer(a: int, b: int) -> None:
            for near in (graphs.list_consumers, graphs.list_producers):
                first, second = reach(a, near), reach(b, near)
                for c, d in ((c, d) for c in first for d in second):
                    if graphs.role[c] == graphs.role[d]:
                        score = self._score_pair(c, d) - 0.15 * (first[c] + second[d])
                        heapq.heappush(heap, (-score, c, d))

        for a, b in self.list_pairs():
            offer(a, b)
        while heap:
            score, a, b = heapq.heappop(heap)
            if -score >= _ENOUGH and a not in partner and b not in partner:
                self._pair_nodes(a, b, sure=False)
                offer(a, b)

    def find_relation(self, u: int, v: int) -> str:
        """Return how constant `v` of the second comes from `u`; see `weights.relation`."""
        a, b = self.graphs.constants.get(u), self.graphs.constants.get(v)
        if (u, v) not in self._relations:
            same = classify_relation(a, b) if a is not None and b is not None else ""
            self._relations[u, v] = same
        return self._relations[u, v]

    def pair_inputs(self, a: int, b: int) -> list[tuple[int, int]]:
        """Return what two nodes read side by side; operands of a sum may have changed places."""
        first, second = self.graphs.reads[a], self.graphs.reads[b]
        if len(first) == len(second) == 2 and self.graphs.op[a] in COMMUTATIVE:
            fixed = [[self.graphs.fixed[v] for v in side] for side in (first, second)]
            if fixed[0] == fixed[1][::-1] != fixed[1]:
                second = second[::-1]
        return list(zip(first, second, strict=False))

    def list_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs, the first model's node first."""
        return [(a, b) for a, b in self.partner.items() if not self.graphs.side_of_node(a)]

    def has_equal_sizes(self, a: int, b: int) -> bool | None:
        """Say whether two nodes' weights have as many elements; None where there are none."""
        constants = self.graphs.constants
        if self.graphs.is_blocked(a) or self.graphs.is_blocked(b):
            return None
        sizes = [
            constants[u].size == constants[v].size
            for u, v in self.pair_inputs(a, b)
            if u in constants and v in constants and constants[u].size > _SMALL
        ]
        return all(sizes) if sizes else None

    def list_changes(self, a: int, b: int) -> tuple[str, ...]:
        """Return what differs between two partners."""
        graphs = self.graphs
        changes = []
        same = graphs.op[a] == graphs.op[b]
        if not same:
            changes.append("operator")
        elif graphs.settings[a] != graphs.settings[b]:
            names = {key for key, _ in graphs.settings[a].items() ^ graphs.settings[b].items()}
            changes.append(f"attributes: {', '.join(sorted(names))}")
        if a in self.exact or self._is_lowered(a, b):
            return tuple(changes)
        for u, v in self.pair_inputs(a, b):
            constant = graphs.constants.get(u) or graphs.constants.get(v)
            heavy = constant is not None and constant.floating and constant.size > 1
            if u in graphs.constants and v in graphs.constants:
                how = self.find_relation(u, v)
                if how != "equal":
                    light = not heavy and how != "rounded"
                    changes.append("constants" if light else f"weights: {how or 'changed'}")
            elif u >= 0 and v >= 0 and graphs.fixed[u] != graphs.fixed[v]:
                changes.append("weights: changed" if heavy else "constants")
        counts = [sum(v >= 0 for v in graphs.reads[node]) for node in (a, b)]
        if same and counts[0] != counts[1]:
            changes.append("weights: changed")
        return tuple(dict.fromkeys(changes))

    def is_retyped(self, a: int, b: int, changes: Sequence[str]) -> bool:
        """Say whether the precision of two partners differs, and nothing else."""
        types = [
            self.graphs.dtype[v] for n in (a, b) for v in self.graphs.list_written_values(n)[:1]
        ]
        other = len(types) == 2 and None not in types and types[0] != types[1]
        integers = self._is_lowered(a, b)
        precise = ("weights: rounded", "weights: quantized")
        lowered = integers or any(change.startswith(precise) for change in changes)
        explained = {"operator"} if integers else set[str]()
        explained |= {"weights: changed"} if lowered else set()
        odd = [c for c in changes if not c.startswith(precise) and c not in explained]
        return (other or lowered) and not odd

    def _is_lowered(self, a: int, b: int) -> bool:
        """Say whether one of two nodes takes integers for numbers."""
        return is_integer_operator(self.graphs.op[a]) != is_integer_operator(self.graphs.op[b])

    def _pair_nodes(self, a: int, b: int, *, sure: bool = True, exact: bool = False) -> None:
        self.partner[a], self.partner[b] = b, a
        self.sure |= {a, b} if sure else set()
        self.exact |= {a, b} if exact else set()

    def _group_by_key(
        self, keyed: Iterable[tuple[Hashable, int]]
    ) -> list[tuple[list[int], list[int]]]:
        """Return the nodes of one key in either model, where both have some."""
        sides: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for key, node in keyed:
            sides[key][self.graphs.side_of_node(node)].append(node)
        return [pair for pair in sides.values() if pair[0] and pair[1]]

    def _pair_by_weights(self) -> None:
        """Pair nodes by weights that only one node on either side reads.

        First those of equal content, then scaled, then the same numbers in another order, as
        kernels for blocks of channels have them.
        """
        graphs, constants = self.graphs, self.graphs.constants
        readers = []
        for value, constant in constants.items():
            users = {user for user in graphs.users[value] if not graphs.is_constant(user)}
            weight = constant.floating or constant.tensor.dtype in _INTEGERS
            if constant.size >= _TELLING and weight and len(users) == 1:
                readers.append((value, users.pop()))
        contents = (((constants[v].digest, constants[v].scale is None), n) for v, n in readers)
        same = self._group_by_key(contents)
        self._pair_weights([(a[0], b[0]) for a, b in same if len({*a}) == len({*b}) == 1])
        self._pair_weights(self._find_scaled([r for r in readers if r[1] not in self.partner]))
        self._pair_weights(self._find_reordered([r for r in readers if r[1] not in self.partner]))

    def _pair_weights(self, pairs: Iterable[tuple[int, int]]) -> None:
        for a, b in pairs:
            same = self.graphs.role[a] == self.graphs.role[b]
            if same and not {a, b} & self.partner.keys():
                self._pair_nodes(a, b)

    def _find_scaled(self, readers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return nodes whose weights are alike but for factors along an axis, as no others."""
        constants = self.graphs.constants
        large = [(v, n) for v, n in readers if constants[v].size >= _SMALL]
        value = {n: v for v, n in large if len(constants[v].shape) > 1}
        pairs = []
        for first, second in self._group_by_key((constants[v].shape, n) for n, v in value.items()):
            grids = [[constants[value[node]].grid for node in side] for side in (first, second)]
            pairs += [(first[a], second[b]) for a, b in match_scaled(*grids)]
        return pairs

    def _find_reordered(self, readers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return nodes whose weights hold the same numbers in another order, as no others do."""
        constants, side = self.graphs.constants, self.graphs.side_of_node
        sizes = [{constants[v].size for v, n in readers if side(n) == which} for which in (0, 1)]
        plain = [(constants[v], n) for v, n in readers if constants[v].scale is None]
        keyed = (((c.size, *c.moments[:2]), n) for c, n in plain if c.size in sizes[0] & sizes[1])
        return [(a[0], b[0]) for a, b in self._group_by_key(keyed) if len(a) == len(b) == 1]

    def _pair_by_names(self) -> bool:
        """Pair nodes by their names and their values', unless other evidence is against names."""
        graphs, partner, role = self.graphs, self.partner, self.graphs.role
        nodes = {str(graphs.nodes[node].name): node for node in graphs.list_nodes(1)}
        makers = {label: n for n in graphs.list_nodes(1) for label in self._list_labels(n)}
        named = []
        for a in graphs.list_nodes(0):
            by_value = [makers.get(label, -1) for label in self._list_labels(a)]
            by_node = nodes.get(str(graphs.nodes[a].name), -1)
            named += [(a, b) for b in dict.fromkeys((*by_value, by_node)) if b >= 0]
        decided = [(a, b) for a, b in named if a in partner or b in partner]
        agree = [partner.get(a) == b or role[a] != role[b] for a, b in decided]
        fit = [self.has_equal_sizes(a, b) for a, b in named if role[a] == role[b]]
        least = min(len(graphs.list_nodes(0)), len(graphs.list_nodes(1)))
        against = sum(agree) < 0.9 * len(agree) or fit.count(True) < fit.count(False)
        blocked = any(map(graphs.is_blocked, graphs.list_nodes(1)))
        if len(named) < 0.2 * least or against or (2 * len(fit) < len(named) and not blocked):
            return False
        named = [(a, b) for a, b in named if a not in partner]
        for a, b in named:
            if role[a] == role[b] and not {a, b} & partner.keys():
                self._pair_nodes(a, b)
        for a, b in named:
            if {*self._list_labels(a)} & {*self._list_labels(b)} and role[a] != role[b]:
                self._pair_heads(a, b)
                if not {role[a], role[b]} & _FORWARDING:
                    self.ends.append((a, b))
        return True

    def _pair_heads(self, a: int, b: int) -> None:
        """Pair the head of a chain with what makes the value of its end: the rest is fused."""
        for node, end in ((a, b), (b, a)):
            for _ in range(_REACH):
                if node < 0 or node in self.partner or end in self.partner:
                    break
                if self.graphs.role[node] == self.graphs.role[end]:
                    self._pair_nodes(*sorted((node, end)))
                    return
                node = max(self.graphs.list_producers(node), default=-1)

    def _list_labels(self, node: int) -> list[str]:
        labels = self.graphs.labels
        return [labels[value] for value in self.graphs.list_written_values(node) if labels[value]]

    def _score_pair(self, a: int, b: int) -> float:
        """Weigh the evidence that two nodes play one role: settings, constants, neighbours."""
        graphs = self.graphs
        settings = graphs.settings[a].items(), graphs.settings[b].items()
        apart = len(settings[0] ^ settings[1]) / max(1, len(settings[0] | settings[1]))
        score = 1.5 - 0.5 * apart + 0.2 * (graphs.op[a] == graphs.op[b])
        for u, v in self.pair_inputs(a, b):
            first, second = graphs.constants.get(u), graphs.constants.get(v)
            if first is None or second is None:
                continue
            if first.size <= _SMALL or second.size <= _SMALL:
                score += 0.5 if self.find_relation(u, v) in ("equal", "rounded") else -0.2
            elif first.size != second.size:
                score -= 0 if graphs.is_blocked(a) or graphs.is_blocked(b) else 1.5
            else:
                score += 2.5 if self.find_relation(u, v).rpartition(", ")[2] in _ALIKE else -0.5
        for near, worth in ((graphs.list_producers, 1.0), (graphs.list_consumers, 0.5)):
            expected = {self.partner[n] for n in near(a) if n in self.partner}
            paired = {n for n in near(b) if n in self.partner}
            score += worth * min(2, len(expected & paired))
            score -= worth * min(len(expected - paired), len(paired - expected), 2)
        uneven = abs(len(graphs.list_data(a)) - len(graphs.list_data(b)))
        return score - 2 * uneven * (graphs.role[a] in COMMUTATIVE)
