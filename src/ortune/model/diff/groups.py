"""What became of which nodes: groups of nodes of two models around the pairs of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ortune.model.diff.operators import MOVING, PASSED_ON, quantizing
from ortune.model.diff.pairs import Pairs
from ortune.model.diff.result import Group, Kind
from ortune.model.diff.side import Side

_AHEAD = frozenset({"Pad", "Transpose", "Reshape", "Concat", "Squeeze", "Unsqueeze", "Slice"})
"""What is rather folded into the node behind it than into the one before."""
_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul"})
_LONG = 8


def groups(pairs: Pairs, *, related: bool = True) -> list[Group]:
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
    def __init__(self, pairs: Pairs, related: bool) -> None:
        self._pairs = pairs
        self._sides = pairs.one, pairs.two
        self._first = len(pairs.one.nodes)
        count = self._first + len(pairs.two.nodes)
        self._root = list(range(count))
        self._members = {node: [node] for node in range(count)}
        self._apart: dict[int, str] = {}
        self._repeated: set[int] = set()
        self._layers = [*pairs.one.layers(), *pairs.two.layers()]
        self._known: set[int] = set()
        for a, b in pairs.of_a.items():
            if related or a in pairs.sure:
                self._join(a, b + self._first)
                self._known |= {a, b + self._first}
        if related:
            self._join_links()
            self._join_repeated()
        self._set_apart()
        if related:
            self._follow()
        parts = self._parts()
        if related:
            parts = self._gaps(parts)
            self._absorb(parts)

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

    def _side(self, node: int) -> tuple[Side, int]:
        return (
            (self._sides[0], node) if node < self._first else (self._sides[1], node - self._first)
        )

    def _whole(self, node: int, near: Iterable[int]) -> list[int]:
        start = 0 if node < self._first else self._first
        return [start + one for one in near]

    def _before(self, node: int) -> list[int]:
        """Return the nodes before one, seen through copies that the other side does not have."""
        side, own = self._side(node)
        return self._through(self._whole(node, side.before(own)), forward=False)

    def _after(self, node: int) -> list[int]:
        side, own = self._side(node)
        return self._through(self._whole(node, side.after(own)), forward=True)

    def _through(self, near: list[int], *, forward: bool) -> list[int]:
        found = []
        for node in near:
            side, own = self._side(node)
            if node in self._known or side.role[own] not in PASSED_ON:
                found.append(node)
            else:
                near += self._whole(node, side.after(own) if forward else side.before(own))
        return found

    def _join_links(self) -> None:
        """Nodes that hold one weight, or make a value of one name, belong together."""
        for a, b in self._pairs.links:
            other = b + self._first
            if a not in self._known or other not in self._known:
                self._join(a, other)
                self._known |= {a, other}

    def _join_repeated(self) -> None:
        """What computes the same as a pair was merged with it, or made by taking it apart."""
        for which, side in enumerate(self._sides):
            start = which * self._first
            hashes = self._pairs.hashes[which]
            partner: dict[str, int] = {}
            for a, b in self._pairs.of_a.items():
                node = (a, b)[which]
                if not side.fixed(node) and side.op[node] not in PASSED_ON:
                    for value in side.writes[node]:
                        partner.setdefault(hashes.get(value, ""), node + start)
            for node in range(len(side.nodes)):
                if node + start in self._known or side.fixed(node) or not side.writes[node]:
                    continue
                found = partner.get(hashes.get(side.writes[node][0], "none"))
                if found is not None and side.op[node] not in PASSED_ON:
                    self._join(node + start, found)
                    self._known.add(node + start)
                    self._repeated |= set(self._members[self._find(found)])

    def _set_apart(self) -> None:
        """Name what stays out of fusions: constants, arithmetic of shapes, the dead."""
        for which, side in enumerate(self._sides):
            start = which * self._first
            dead = side.dead()
            for node in range(len(side.nodes)):
                if node + start in self._known:
                    continue
                if node in dead:
                    self._apart[node + start] = "nothing depends on it"
                elif side.fixed(node) and not self._read_by_integers(node + start):
                    self._apart[node + start] = "a constant"
                elif side.shapely[node]:
                    self._apart[node + start] = "arithmetic of shapes"

    def _follow(self) -> None:
        """Give a layer that changed what scales and shifts its channels behind it."""
        for a, b in self._pairs.of_a.items():
            for start in (a, b + self._first):
                node = start
                if self._role(node) not in _LAYERS or not self._changed(node):
                    continue
                while (behind := self._after(node)) and all(
                    n in self._known or self._by_channel(n) for n in behind
                ):
                    free = [n for n in behind if n not in self._known]
                    if len(free) != 1 or len(set(behind)) > 1:
                        break
                    node = free[0]
                    self._join(node, start)
                    self._known.add(node)

    def _by_channel(self, node: int) -> bool:
        side, own = self._side(node)
        if side.role[own] == "BatchNormalization":
            return True
        fixed = [side.held.get(v) for v in side.reads[own] if v >= 0 and side.constant[v]]
        linear = side.role[own] in ("Add", "Sub", "Mul", "Div") and len(fixed) == 1
        return linear and fixed[0] is not None and fixed[0].size > 1

    def _read_by_integers(self, node: int) -> bool:
        """Whether a node dequantizes a constant for one whose partner takes integers."""
        side, own = self._side(node)
        if side.role[own] != "DequantizeLinear":
            return False
        return any(self._takes_integers(user, node) for user in self._after(node))

    def _takes_integers(self, node: int, seen_from: int) -> bool:
        """Whether the other side of a node's group takes integers for numbers."""
        own = seen_from < self._first
        members = [n for n in self._members[self._find(node)] if (n < self._first) != own]
        return any(quantizing(self._op(n)) for n in members)

    def _op(self, node: int) -> str:
        side, own = self._side(node)
        return side.op[own]

    def _role(self, node: int) -> str:
        side, own = self._side(node)
        return side.role[own]

    def _parts(self) -> list[list[int]]:
        """Join connected nodes without a partner, kind by kind, and return those to place."""
        free = [n for n in range(len(self._root)) if n not in self._known and not self._copies(n)]
        wanted = set(free)
        readers = {n: [near for near in self._after(n) if near in wanted] for n in free}
        shared = []
        for node in free:
            alike = [near for near in readers[node] if self._sort(near) == self._sort(node)]
            if node in self._apart or len(alike) == 1:
                for near in alike:
                    self._join(node, near)
            elif alike:
                shared.append((node, alike))
        while left := [(node, alike) for node, alike in shared if not self._gathered(node, alike)]:
            if len(left) == len(shared):
                break
            shared = left
        found: dict[int, list[int]] = defaultdict(list)
        for node in free:
            if node not in self._apart:
                found[self._find(node)].append(node)
        return list(found.values())

    def _gathered(self, node: int, readers: Sequence[int]) -> bool:
        """Join a node to its readers if those are together without it: others share it."""
        if len({self._find(near) for near in readers}) > 1:
            return False
        self._join(node, readers[0])
        return True

    def _sort(self, node: int) -> tuple[str, bool]:
        """Only nodes of one sort are joined."""
        return self._apart.get(node, ""), self._moves(node)

    def _copies(self, node: int) -> bool:
        return self._role(node) in PASSED_ON

    def _moves(self, node: int) -> bool:
        return self._role(node) in ("QuantizeLinear", "DequantizeLinear")

    def _borders(self, part: Sequence[int]) -> tuple[set[str], set[str]]:
        """Return the groups before and behind a part; the model's inputs and outputs count too."""
        own = set(part)
        before, behind = set[str](), set[str]()
        for node in part:
            side, at = self._side(node)
            before |= {self._ahead(n) for n in self._before(node) if n not in own}
            behind |= {str(self._find(n)) for n in self._after(node) if n not in own}
            values = side.data(at)
            before |= {f"in {side.inputs.index(v)}" for v in values if v in side.inputs}
            made = [v for v in side.writes[at] if v in side.results]
            behind |= {f"out {side.results.index(v)}" for v in made}
        return before, behind

    def _ahead(self, node: int) -> str:
        """Name the group of a node, or of what it hands on when it only moves and stands alone."""
        seen = 0
        while node not in self._known and self._role(node) in MOVING and seen < 9:
            earlier = self._before(node)
            if not earlier:
                break
            node, seen = earlier[0], seen + 1
        return str(self._find(node))

    def _gaps(self, parts: list[list[int]]) -> list[list[int]]:
        """Join parts of both sides that lie between the same groups; return the others."""
        first = [part for part in parts if part[0] < self._first]
        second = [part for part in parts if part[0] >= self._first]
        borders = {part[0]: self._borders(part) for part in parts}
        left = []
        for part in first:
            before, behind = borders[part[0]]
            for other in second:
                near, far = borders[other[0]]
                if before & near and behind & far and self._alike(part, other):
                    self._join(part[0], other[0])
                    self._known |= {*part, *other}
                    second.remove(other)
                    break
            else:
                left.append(part)
        return left + second

    def _alike(self, part: Sequence[int], other: Sequence[int]) -> bool:
        """Refuse to take what only moves for what computes, if a neighbour explains that."""
        moving = [all(self._role(n) in MOVING for n in one) for one in (part, other)]
        if moving[0] == moving[1]:
            return True
        computing = part if moving[1] else other
        return not self._taker(computing)

    def _absorb(self, parts: Sequence[Sequence[int]]) -> None:
        """Give what is on one side only to what changed beside it: node by node, as data flows."""
        for part in parts:
            if self._apart_by_kind(part):
                if (taker := self._taker(part)) is not None:
                    self._join(part[0], taker)
                    self._known |= set(part)
                continue
            self._split(part)
            for node in part:
                self._give(node, self._deepest(node)[:1], behind=False)
            for node in reversed(part):
                self._give(node, sorted(self._after(node)), behind=True)
            for node in part:
                self._give(node, self._deepest(node), behind=False)
            self._rejoin([node for node in part if node not in self._known])

    def _deepest(self, node: int) -> list[int]:
        """Return the nodes before one, that on the longest way first."""
        return sorted(self._before(node), key=lambda n: (-self._layers[n], -n))

    def _give(self, node: int, near: Sequence[int], *, behind: bool) -> None:
        if node in self._known or (not behind and self._role(node) in _AHEAD):
            return
        for other in near:
            if other in self._known and self._changed(other):
                self._join(node, other)
                self._known.add(node)
                return

    def _split(self, part: Sequence[int]) -> None:
        """Make nodes that were joined groups of their own again."""
        for node in part:
            self._root[node] = node
            self._members[node] = [node]

    def _rejoin(self, part: Sequence[int]) -> None:
        left = set(part)
        for node in part:
            for near in self._after(node):
                if near in left:
                    self._join(node, near)

    def _apart_by_kind(self, part: Sequence[int]) -> bool:
        roles = {self._role(node) for node in part}
        return roles <= {"Cast", "QuantizeLinear", "DequantizeLinear"} or any(
            role.startswith("Reorder") for role in roles
        )

    def _taker(self, part: Sequence[int]) -> int | None:
        """Return a node of the group beside a part that has changed so that it may hold it."""
        own = set(part)
        before = [n for node in part for n in self._before(node) if n not in own]
        behind = [n for node in part for n in self._after(node) if n not in own]
        roles = {self._role(node) for node in part}
        if roles <= {"QuantizeLinear", "DequantizeLinear"}:
            near = (*behind, *before)
            return next((n for n in near if self._takes_integers(n, part[0])), None)
        around = {self._find(n) for n in (*before, *behind)}
        if len(around) == 1 and before and behind and self._changed(before[0]):
            return before[0]
        if self._apart_by_kind(part):
            return None
        order = (*behind, *before) if self._role(part[0]) in _AHEAD else (*before, *behind)
        return next((n for n in order if self._changed(n)), None)

    def _changed(self, node: int) -> bool:
        """Whether a group differs so that it may hold what is missing on the other side."""
        members = self._members[self._find(node)]
        a = [n for n in members if n < self._first]
        b = [n - self._first for n in members if n >= self._first]
        if not a or not b:
            return False
        if len(a) > 1 or len(b) > 1:
            return True
        told = self._compared(a[0], b[0])
        absorbing = ("operator", "attributes", "weights: scaled", "weights: changed")
        return any(one.startswith(absorbing) or "reordered" in one for one in told)

    def _compared(self, a: int, b: int) -> tuple[str, ...]:
        """Return what differs between two partners."""
        one, two = self._sides
        found = []
        if one.op[a] != two.op[b]:
            found.append("operator")
        if one.said[a] != two.said[b] and one.op[a] == two.op[b]:
            names = sorted(k for k, _ in one.said[a].items() ^ two.said[b].items())
            found.append(f"attributes: {', '.join(dict.fromkeys(names))}")
        if a in self._pairs.exact:
            return tuple(found)
        if one.op[a] != two.op[b] and quantizing(one.op[a]) != quantizing(two.op[b]):
            return tuple(found)
        for u, v in self._pairs.slots(a, b):
            if u not in one.held or v not in two.held:
                if u >= 0 and v >= 0 and one.constant[u] != two.constant[v]:
                    found.append("weights: changed" if _heavy(one, u, two, v) else "constants")
                continue
            told = self._pairs.relation(u, v)
            if told != "equal":
                light = not _heavy(one, u, two, v) and told != "rounded"
                found.append("constants" if light else f"weights: {told or 'changed'}")
        more = len([v for v in one.reads[a] if v >= 0]) != len([v for v in two.reads[b] if v >= 0])
        if more and one.op[a] == two.op[b]:
            found.append("weights: changed")
        return tuple(dict.fromkeys(found))

    def result(self) -> list[Group]:
        """Return the groups in the order of the first model, then of the second."""
        return [
            self._group(
                [n for n in sorted(members) if n < self._first],
                [n - self._first for n in sorted(members) if n >= self._first],
            )
            for _, members in sorted(self._members.items())
        ]

    def _group(self, a: list[int], b: list[int]) -> Group:
        one, two = self._sides
        left, right = _spelled(one, a), _spelled(two, b)
        pattern = f"{left} -> {right}"
        if not a or not b:
            kind: Kind = "removed" if a else "added"
            why = self._apart.get(a[0] if a else b[0] + self._first, "")
            text = left if a else right
            return Group(kind, tuple(a), tuple(b), text, (why,) if why else ())
        if len(a) == len(b) == 1:
            changes = self._compared(a[0], b[0]) + self._rewired(a[0], b[0])
            typed = _retyped(one, two, a[0], b[0], changes)
            kind = typed if changes or typed == "retyped" else "matched"
            return Group(kind, tuple(a), tuple(b), left if left == right else pattern, changes)
        kind = "replaced"
        if len(a) != len(b):
            kind = "fused" if len(a) > len(b) else "split"
        every = {*a, *(node + self._first for node in b)}
        told = ("equal nodes are one",) if every <= self._repeated else ()
        return Group(kind, tuple(a), tuple(b), pattern, told)

    def _rewired(self, a: int, b: int) -> tuple[str, ...]:
        """Whether partners read what does not stand for each other."""
        if a in self._pairs.exact:
            return ()
        left, right = self._sources(a), self._sources(b + self._first)
        return ("inputs",) if left - right and right - left else ()

    def _sources(self, node: int) -> set[str]:
        """Name the groups that make the data of a node; shapes given to it do not count."""
        side, own = self._side(node)
        near = self._before(node)
        if not side.shapely[own]:
            near = [n for n in near if not self._side(n)[0].shapely[self._side(n)[1]]]
        found = {self._ahead_alone(n) for n in near}
        return found | {f"in {side.inputs.index(v)}" for v in side.data(own) if v in side.inputs}

    def _ahead_alone(self, node: int) -> str:
        """Name the group behind nodes that the other side does not have."""
        for _ in range(40):
            group = self._members[self._find(node)]
            sides = {n < self._first for n in group}
            earlier = self._before(node)
            if len(sides) == 2:
                return str(self._find(node))
            if not earlier:
                side, own = self._side(node)
                given = [v for v in side.data(own) if v in side.inputs]
                return f"in {side.inputs.index(given[0])}" if given else str(self._find(node))
            node = earlier[0]
        return str(self._find(node))


def _heavy(one: Side, u: int, two: Side, v: int) -> bool:
    held = one.held.get(u) or two.held.get(v)
    return held is not None and held.floating and held.size > 1


def _retyped(one: Side, two: Side, a: int, b: int, changes: Sequence[str]) -> Kind:
    """Say whether only the precision of two partners differs, or more."""
    kinds = [
        [side.dtype[v] for v in side.writes[n][:1] if v >= 0] for side, n in ((one, a), (two, b))
    ]
    other = all(kinds) and all(kinds[0]) and all(kinds[1]) and kinds[0] != kinds[1]
    precise = ("weights: rounded", "weights: quantized")
    lowered = any(change.startswith(precise) for change in changes) or (
        quantizing(one.op[a]) != quantizing(two.op[b])
    )
    rest = [c for c in changes if not c.startswith(precise)]
    if quantizing(one.op[a]) != quantizing(two.op[b]):
        rest = [change for change in rest if change != "operator"]
    if (other or lowered) and not [c for c in rest if c != "weights: changed" or not lowered]:
        return "retyped"
    return "changed"


def _spelled(side: Side, nodes: Sequence[int]) -> str:
    """Write the operators of a group, long ones by number."""
    ops = [side.op[node].rpartition("::")[2] for node in nodes]
    if len(ops) <= _LONG:
        return "+".join(ops)
    counted = Counter(ops).most_common()
    shown = [f"{count} {op}" if count > 1 else op for op, count in counted[:_LONG]]
    rest = len(counted) - len(shown)
    return "+".join(shown) + (f"+{rest} more operators" if rest > 0 else "")
