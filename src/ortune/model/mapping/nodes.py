"""Which nodes of a model each node of the executed graph stands for.

A runtime fuses, splits, renames and reorders. From the names that survive the values of the source
model that the executed tensors carry are found (`ortune.model.mapping.tensors`); a kernel then
stands for the nodes between the source values of its inputs and those of its outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.session import Executed, Recorded
from ortune.model.analysis.dataflow import Origin
from ortune.model.mapping.tensors import ADDED, TensorSources


@dataclass(frozen=True)
class Lineage:
    """The way from executed nodes to source nodes.

    Attributes:
        sources: For every executed node the source nodes it stands for, in their order.
        folded: Source nodes that no executed node stands for: constants, or removed.
        repeated: Source nodes that several executed nodes stand for together.
        guessed: Source nodes put to the nearest executed node for want of a better clue.
        followed: Executed nodes that nothing tells of: they take what is behind those before.
    """

    sources: tuple[tuple[str, ...], ...]
    folded: tuple[str, ...]
    repeated: tuple[str, ...]
    guessed: tuple[str, ...] = ()
    followed: tuple[str, ...] = ()


def lineage(model: ir.Model, recorded: Recorded) -> Lineage:
    """Map every executed node to nodes of the source model.

    Args:
        model: The model that the runtime loaded; names are unique and functions inlined.
        recorded: What it executed.
    """
    return _Matching(Origin(model), recorded).result()


class _Matching:
    def __init__(self, origin: Origin, recorded: Recorded) -> None:
        self._origin = origin
        self._nodes = recorded.nodes
        self._constants = set(recorded.constants)
        self._sources = TensorSources(origin, recorded)
        self._twins: dict[str, list[str]] = defaultdict(list)
        for value, stands in self._sources.same.items():
            if value != stands and stands in origin.maker and value in origin.maker:
                self._twins[origin.maker[stands]].append(origin.maker[value])

    def result(self) -> Lineage:
        stop = set(self._sources.source.values())
        found = [self._cones(node, stop) for node in self._nodes]
        found = [
            f if f else self._between(n, stop) for n, f in zip(self._nodes, found, strict=True)
        ]
        return self._settled(found)

    def _cones(self, node: Executed, stop: set[str]) -> dict[str, None]:
        found = dict.fromkeys(k for k in node.known if k in self._origin.nodes)
        read = {self._sources.source[name] for name in node.reads if name in self._sources.source}
        for name in node.writes:
            value = self._sources.source.get(name)
            if value is not None and value not in read:
                found |= self._origin.cone(value, stop, self._sources.same)[0]
        named = self._sources.taken.get(node.name)
        if named is not None and not found and node.op_type not in ADDED:
            found[named] = None
        return found

    def _between(self, node: Executed, stop: set[str]) -> dict[str, None]:
        """Return what lies between the nearest known tensors after a node, for one without any."""
        if node.op_type in ADDED and node.name not in self._sources.taken:
            return {}
        pending = [name for name in node.writes if name]
        seen = set(pending)
        found: dict[str, None] = {}
        for name in pending:
            if name in self._sources.source:
                found |= self._origin.cone(self._sources.source[name], stop, self._sources.same)[0]
                continue
            for reader in self._sources.readers[name]:
                new = [w for w in reader.writes if w and w not in seen]
                seen.update(new)
                pending += new
        return found

    def _settled(self, found: Sequence[dict[str, None]]) -> Lineage:
        """Account for every source node: constants and the removed, and twins of others."""
        origin = self._origin
        for sources in found:
            for name in list(sources):
                sources.update(dict.fromkeys(self._twins.get(name, ())))
        followed = self._follow(found)
        claimed = {name for sources in found for name in sources}
        left = [name for name in origin.nodes if name not in claimed]
        folded = {n for n in left if set(origin.outputs[n]) <= origin.constant} | origin.dead()
        for name in self._constants:
            if name in origin.maker:
                folded |= set(origin.cone(name, (), self._sources.same)[0]) - claimed
        folded -= claimed
        guessed = [name for name in left if name not in folded]
        lost = _attach(origin, found, guessed)
        counts: dict[str, int] = defaultdict(int)
        for sources in found:
            for name in sources:
                counts[name] += 1
        return Lineage(
            tuple(origin.ordered(sources) for sources in found),
            origin.ordered([*folded, *lost]),
            origin.ordered(name for name, count in counts.items() if count > 1),
            tuple(name for name in guessed if name not in lost),
            followed,
        )

    def _follow(self, found: Sequence[dict[str, None]]) -> tuple[str, ...]:
        """Give kernels that nothing tells of what reads their predecessors and is claimed by none.

        Several in a row stand for the same source nodes together.

        Returns:
            Those that were given some.
        """
        maker = {name: at for at, node in enumerate(self._nodes) for name in node.writes if name}
        claimed = {name for sources in found for name in sources}
        late: set[int] = set()
        for at, node in enumerate(self._nodes):
            if found[at] or node.op_type in ADDED:
                continue
            before = [maker[name] for name in node.reads if name in maker]
            values = [v for b in before for name in found[b] for v in self._origin.outputs[name]]
            readers = {r for value in values for r in self._origin.readers[value]} - claimed
            shared = {name for b in before if b in late for name in found[b]}
            found[at].update(dict.fromkeys(self._origin.ordered(readers or shared)))
            late.add(at)
        return tuple(self._nodes[at].name for at in sorted(late) if found[at])


def _attach(origin: Origin, found: Sequence[dict[str, None]], left: Iterable[str]) -> set[str]:
    """Give unclaimed nodes to the kernel of a reader, else of a maker.

    Returns:
        Those that have neither.
    """
    owner = {name: sources for sources in found for name in sources}
    pending = list(left)
    while pending:
        rest = []
        for name in reversed(pending):
            readers = [r for value in origin.outputs[name] for r in origin.readers[value]]
            makers = [origin.maker[v] for v in origin.inputs[name] if v in origin.maker]
            near = next((owner[n] for n in (*readers, *makers) if n in owner), None)
            if near is None:
                rest.append(name)
            else:
                near[name] = None
                owner[name] = near
        if len(rest) == len(pending):
            return set(rest)
        pending = list(reversed(rest))
    return set()
