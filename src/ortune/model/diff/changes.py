"""What differs between two nodes that play the same role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ortune.core import wording
from ortune.model.diff.graphs import Graphs
from ortune.model.diff.operators import quantizing
from ortune.model.diff.pairs import NodePairs

_LONG = 8


def compared(pairs: NodePairs, a: int, b: int) -> tuple[str, ...]:
    """Return what differs between two partners."""
    graphs = pairs.graphs
    found = []
    same = graphs.op[a] == graphs.op[b]
    if not same:
        found.append("operator")
    elif graphs.settings[a] != graphs.settings[b]:
        names = {key for key, _ in graphs.settings[a].items() ^ graphs.settings[b].items()}
        found.append(f"attributes: {', '.join(sorted(names))}")
    if a in pairs.exact or quantizing(graphs.op[a]) != quantizing(graphs.op[b]):
        return tuple(found)
    for u, v in pairs.slots(a, b):
        held = graphs.constants.get(u) or graphs.constants.get(v)
        heavy = held is not None and held.floating and held.size > 1
        if u in graphs.constants and v in graphs.constants:
            relation = pairs.relation(u, v)
            if relation != "equal":
                light = not heavy and relation != "rounded"
                found.append("constants" if light else f"weights: {relation or 'changed'}")
        elif u >= 0 and v >= 0 and graphs.fixed[u] != graphs.fixed[v]:
            found.append("weights: changed" if heavy else "constants")
    counts = [sum(v >= 0 for v in graphs.reads[node]) for node in (a, b)]
    if same and counts[0] != counts[1]:
        found.append("weights: changed")
    return tuple(dict.fromkeys(found))


def by_channel(graphs: Graphs, node: int) -> bool:
    """Say whether a node scales or shifts the channels of one tensor."""
    fixed = [graphs.constants.get(v) for v in graphs.reads[node] if v >= 0 and graphs.fixed[v]]
    linear = graphs.role[node] in ("Add", "Sub", "Mul", "Div") and len(fixed) == 1
    many = linear and fixed[0] is not None and fixed[0].size > 1
    return many or graphs.role[node] == "BatchNormalization"


def retyped(graphs: Graphs, a: int, b: int, changes: Sequence[str]) -> bool:
    """Say whether the precision of two partners differs, and nothing else."""
    kinds = [graphs.dtype[v] for n in (a, b) for v in graphs.made(n)[:1]]
    other = len(kinds) == 2 and None not in kinds and kinds[0] != kinds[1]
    integers = quantizing(graphs.op[a]) != quantizing(graphs.op[b])
    precise = ("weights: rounded", "weights: quantized")
    lowered = integers or any(change.startswith(precise) for change in changes)
    explained = {"operator"} if integers else set[str]()
    explained |= {"weights: changed"} if lowered else set()
    rest = [c for c in changes if not c.startswith(precise) and c not in explained]
    return (other or lowered) and not rest


def spelled(graphs: Graphs, nodes: Sequence[int]) -> str:
    """Write the operators of a group, long ones by number."""
    ops = [graphs.op[node].rpartition("::")[2] for node in nodes]
    if len(ops) <= _LONG:
        return "+".join(ops)
    counted = Counter(ops).most_common()
    shown = [f"{count} {op}" if count > 1 else op for op, count in counted[:_LONG]]
    rest = len(counted) - len(shown)
    return "+".join(shown) + (f"+{wording.count(rest, 'more operator')}" if rest > 0 else "")
