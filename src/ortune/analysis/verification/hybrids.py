"""Models half of which are the reference's and half the other's, and their common tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortune.analysis.verification.tensors import closeness
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.model.graph import edit
from ortune.model.graph.edit import const_tensor
from ortune.model.parts.extract import extract, upstream
from ortune.model.parts.splice import splice
from ortune.model.shapes.infer import infer

_OTHER_MEANING_DB = 6.0
_RECOVERS_DB = 10.0


@dataclass(frozen=True)
class CommonRegion:
    """The same part of both models."""

    reference: ir.Model
    other: ir.Model
    nodes: tuple[str, ...]
    replaced: tuple[str, ...]


class Hybrids:
    """A model that passes and one that fails, and the tensors that both have."""

    def __init__(self, good: ir.Model, bad: ir.Model, backend: Backend) -> None:
        self.good, self.bad, self.backend = good, bad, backend
        self.oracle = Cpu(level="disabled", custom_ops=backend.custom_ops)
        self.close: dict[str, float] = {}
        for model in (good, bad):
            edit.inline(model)
            infer(model)
        self._good, self._bad = _made(good), _made(bad)

    def borders(self, samples: Path, indices: Sequence[int]) -> list[str]:
        """Return tensors of one name and meaning in the order of the graph, outputs among them.

        A tensor that is far off while a later one is near has been expressed otherwise (scaled,
        say, by a step that scales back behind it): it is no border.
        """
        shared = [n for n, v in self._good.items() if n in self._bad and _alike(v, self._bad[n])]
        both, backends = (self.good, self.bad), (self.oracle, self.oracle)
        self.close = closeness(both, shared, samples, indices, backends)
        found = []
        for place, name in enumerate(shared):
            own = self.close.get(name)
            if own is None:
                continue
            later = [self.close[n] for n in shared[place + 1 :] if n in self.close]
            if own < _OTHER_MEANING_DB and max(later, default=-np.inf) > own + _RECOVERS_DB:
                continue
            found.append(name)
        return found

    def mixed(self, taken: Collection[str]) -> ir.Model:
        """Return the good model with all tensors of `taken` from the bad one."""
        stops = {self._good[name] for name in taken}
        met = upstream(self.good.graph.outputs, stops)
        ends = [str(value.name) for value in met if value in stops]
        return splice(self.good, extract(self.bad, (), ends))

    def region(self, tensor: str, before: Sequence[str]) -> CommonRegion:
        """Return what makes a tensor, from the tensors before on, in both models."""
        given = {str(value.name) for value in self.good.graph.inputs}
        starts = set(before) | given
        while True:
            one = _reached(self._good[tensor], self._good, starts, self.good)
            two = _reached(self._bad[tensor], self._bad, starts, self.bad)
            if one == two:
                break
            starts -= one ^ two
        cuts = sorted(one - given)
        ref, other = extract(self.good, cuts, [tensor]), extract(self.bad, cuts, [tensor])
        return CommonRegion(
            ref, other, *(tuple(str(n.name) for n in m.graph) for m in (other, ref))
        )


def _made(model: ir.Model) -> dict[str, ir.Value]:
    """Return the tensors of the main graph that nodes make, constants apart, in order."""
    return {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and const_tensor(value) is None
    }


def _alike(one: ir.Value, two: ir.Value) -> bool:
    if one.dtype != two.dtype or one.dtype is None:
        return False
    ranks = [None if v.shape is None else v.shape.rank() for v in (one, two)]
    return None in ranks or ranks[0] == ranks[1]


def _reached(
    end: ir.Value, values: dict[str, ir.Value], starts: Collection[str], model: ir.Model
) -> set[str]:
    inputs = {str(value.name): value for value in model.graph.inputs}
    known = {**values, **inputs}
    stops = {known[name] for name in starts if name in known and known[name] is not end}
    return {str(value.name) for value in upstream([end], stops) if value in stops}
