"""What time regions save in place, once a pattern: twelve equal layers take one comparison."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.trial import Interval
from ortune.measurement.timing.operators import operator
from ortune.model.analysis.flops import node_flops
from ortune.model.graph import edit
from ortune.model.io import names
from ortune.model.shapes.infer import shaped
from ortune.regions.grouping import Region

LITTLE = 0.01
"""Share of the original's time below which a pattern is not timed."""
UNKNOWN = Interval(math.nan, math.nan, math.nan)
_KINDS = {
    "Gemm": "MatMul",
    "FusedGemm": "MatMul",
    "FusedMatMul": "MatMul",
    "Attention": "MatMul",
    "MultiHeadAttention": "MatMul",
    "FusedConv": "Conv",
}
"""Operators whose kernels runtimes put in each other's place -> the one that stands for all."""


@dataclass(frozen=True)
class Gain:
    """What a region of a pattern saves.

    Attributes:
        gained: Share of the original's latency that one of them saves in place, with 99 %.
        timed: Whether it was timed; else it is what its operators take at most.
        error: Why it is not known.
    """

    pattern: str
    gained: Interval
    timed: bool = True
    error: str = ""


@dataclass(frozen=True)
class Pattern:
    """Regions of equal structure.

    Attributes:
        share: Of the original's time that all of them take together, by their operators; NaN
            where it is not known.
    """

    pattern: str
    regions: tuple[Region, ...]
    share: float

    @property
    def little(self) -> bool:
        """Whether they take too little time to be timed."""
        return self.share < LITTLE

    def blurred(self, compared: Interval) -> bool:
        """Whether a comparison would tell less than the profile: see `gain`.

        Args:
            compared: The plan against the original, as sure as any comparison in the survey is.
        """
        return compared.high - compared.low > 2 * self.share

    def untimed(self, plan: float) -> Gain:
        """Return what one of them may save, by what its operators take.

        Args:
            plan: The plan's latency over the original's: layers may save as all do.
        """
        most = self.share / len(self.regions)
        value = min(most, max(-most, most * (1 - plan)))
        return Gain(self.pattern, Interval(value, -most, most), timed=False)

    def gain(self, plan: float, given_back: Interval) -> Gain:
        """Return what one of them saves; by the profile where the comparison tells less.

        Args:
            plan: The plan's latency over the original's.
            given_back: Latency of the plan with all of them in float over the plan's own.
        """
        each = plan / len(self.regions)
        ends = ((one - 1) * each for one in (given_back.value, given_back.low, given_back.high))
        found = Interval(*ends)
        if found.high - found.low > 2 * self.share / len(self.regions):
            return self.untimed(plan)
        return Gain(self.pattern, found)


def patterns(
    model: ir.Model, regions: Iterable[Region], by_operator: Mapping[str, float]
) -> list[Pattern]:
    """Return the patterns of regions, those that take most time first; of unknown time in front.

    A pattern takes its part of its operators' time: by floating-point operations, by bytes of
    weights where shapes are not known.

    Args:
        model: That the regions are of.
        by_operator: Operator -> its share of the original's time.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for name, part in by_operator.items():
        spent[_kind(name)] += part
    alike: defaultdict[str, list[Region]] = defaultdict(list)
    for region in regions:
        alike[region.pattern].append(region)
    work = _work(model)
    total: defaultdict[str, float] = defaultdict(float)
    for kind, amount in work.values():
        total[kind] += amount

    def share(region: Region) -> float:
        parts = [work[name] for name in region.layers if name in work]
        if not parts or any(kind not in spent for kind, _ in parts):
            return math.nan
        return sum(spent[kind] * amount / max(total[kind], 1.0) for kind, amount in parts)

    found = [Pattern(name, tuple(some), sum(map(share, some))) for name, some in alike.items()]
    return sorted(found, key=lambda one: -one.share if one.share == one.share else -math.inf)


def _work(model: ir.Model) -> dict[str, tuple[str, float]]:
    """Return node -> its kind of operator and what it has to do, comparable within a kind."""
    copy = model.clone()
    names.unique(copy)
    copy, _ = shaped(copy)
    names.unique(copy)
    found: dict[str, tuple[str, int | None, int]] = {}
    for node in edit.every_node(copy):
        held = [edit.const_tensor(value) for value in node.inputs]
        size = sum(tensor.nbytes for tensor in held if tensor is not None)
        found[str(node.name)] = _kind(node.op_type), node_flops(node), size
    unknown = {kind for kind, count, size in found.values() if count is None}
    return {
        name: (kind, float(size if kind in unknown or count is None else count))
        for name, (kind, count, size) in found.items()
    }


def _kind(op: str) -> str:
    plain = operator(op.rpartition("::")[2])
    return _KINDS.get(plain, plain)
