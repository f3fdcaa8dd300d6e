"""What `sensitivity` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ortune.core.plugins import codec
from ortune.core.result import TableResult
from ortune.regions.survey import RegionCost, SharedCost


@dataclass(frozen=True, repr=False)
class Sensitivity(TableResult):
    """What every region costs and saves alone.

    Attributes:
        model: Its file.
        model_digest: Of it and its external data.
        by: What was taken at a time: ``region``, ``node`` or ``op``.
        recipe: The whole plan's steps.
        precision: The step that decides.
        on: The backend.
        budget: Whose metric is lost.
        budget_rule: How it was derived; empty when it was given.
        unit: Of accuracy costs, in words.
        samples: That costs were taken on.
        regions: What is worth giving back first.
        whole_cost: What all of them lose together.
        shared: What neighbours lose each alone and together once, the most first.
        not_reached: Regions that the time did not suffice for.
        finished: ``done``, or ``time``.
        seconds: What measuring took.
        kept: The figures are from an earlier call.
        notes: What a person should know.
    """

    headline = ("model", "precision", "on", "by", "whole_cost", "unit", "finished")
    table = "regions"

    model: str
    model_digest: str
    by: str
    recipe: tuple[str, ...]
    precision: str
    on: str
    budget: str
    budget_rule: str
    unit: str
    samples: int
    regions: tuple[RegionCost, ...]
    whole_cost: float
    not_reached: tuple[str, ...]
    finished: str
    seconds: float
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[SharedCost, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()

    def result(self) -> dict[str, Any]:
        """Return what ``--json`` shows; see ``docs/cli.md``."""
        told = {k: codec.encode(v) for k, v in vars(self).items() if k != "regions"}
        rows = [{**codec.encode(one), "cost_per_time": finite(worth(one))} for one in self.regions]
        return {**told, "regions": rows}


def worth(region: RegionCost) -> float:
    """Return a region's accuracy cost over the time that it saves: what is given back first.

    It is infinite where it costs accuracy and saves nothing; what is not known is least.
    """
    cost, gain = region.accuracy_cost.value, region.time_gained.value
    if region.error or math.isnan(cost) or math.isnan(gain):
        return -math.inf
    if gain <= 0:
        return math.inf if cost > 0 else 0.0
    return cost / gain


def ordered(regions: Sequence[RegionCost]) -> tuple[RegionCost, ...]:
    """Return regions with what is worth giving back first; of equal ones the costlier first."""
    return tuple(sorted(regions, key=lambda one: (-worth(one), -one.accuracy_cost.value)))


def finite(value: float) -> float | None:
    """Return a number that JSON has, None for others."""
    return value if math.isfinite(value) else None


def again(found: Sensitivity, model: str) -> Sensitivity:
    """Return kept figures as the answer of another call."""
    return replace(found, kept=True, model=model)
