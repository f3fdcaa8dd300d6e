"""What is known of regions at a plan's precision: records that are written and read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.errors import Interruption
from ortune.core.trial import Interval, Plan


@dataclass(frozen=True)
class SurveyRequest:
    """A wish of a policy's: measure the regions of a plan, one at a time.

    Attributes:
        plan: Of which regions are given back; its last quantizer decides their precision.
        seconds: Longest that it is worth.
    """

    plan: Plan
    why: str = ""
    seconds: float = math.inf


@dataclass(frozen=True)
class RegionCost:
    """One region at a plan's precision, against the same region in float.

    Attributes:
        pattern: Digest of its structure: regions that share it take the same time.
        accuracy_cost: What the metric loses with this region alone at that precision, in the
            metric's unit; more is worse. Its ends hold with 95 %.
        time_gained: What the region probably saves, as a share of the original's latency, by its
            part of the profile; negative where it costs time. Its ends are that part: a region
            saves no more than it takes.
        error: Why it could not be measured; empty where it was.
        layers: Names of the nodes that multiply or look up, by which quantizers leave it out; all
            nodes where it is empty.
    """

    region: str
    nodes: tuple[str, ...]
    pattern: str
    ops: tuple[str, ...]
    accuracy_cost: Interval
    time_gained: Interval
    saved: int = 0
    error: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedCost:
    """What two neighbouring regions lose each alone and together once.

    What flows between them is rounded for either, so that leaving one in float does not bring it
    back.

    Attributes:
        cost: In the metric's unit: both single costs less that of the two together.
    """

    one: str
    two: str
    cost: float


@dataclass(frozen=True)
class Survey:
    """All regions of one plan.

    Attributes:
        whole_cost: What the metric loses with all regions at that precision, on the samples that
            the regions' costs were taken on: single costs, without what neighbours share, add up
            to about this.
        error: Why there is no survey; empty where there is one.
        interruption: What from outside is behind the error: as of a trial.
        shared: Of neighbours that lose much.
    """

    key: str
    plan: Plan
    regions: tuple[RegionCost, ...]
    whole_cost: float
    unit: str = ""
    seconds: float = 0.0
    error: str = ""
    shared: tuple[SharedCost, ...] = ()
    interruption: Interruption | None = None


@dataclass(frozen=True)
class MixtureOutcome:
    """What came of a mixture: a line of the journal, beside those of its survey.

    Attributes:
        expected_ratio: Of its latency to the original's, when it was proposed.
        expected_lost: Loss over what the budget lets a plan lose; decibels as power.
        ratio: As it was measured; None where it did not run.
        lost: Likewise; None where it was not scored.
        kept: Whether it was the best plan when it was measured.
    """

    formerly: ClassVar[Mapping[str, str]] = {"correction": "", "stored": ""}

    survey: str
    key: str
    plan: Plan
    left: tuple[str, ...]
    regions: int
    expected_ratio: float
    expected_lost: float
    ratio: Interval | None
    lost: float | None
    kept: bool
    why: str


def is_unchanged(region: RegionCost) -> bool:
    """Whether the surveyed plan leaves a region in float by itself."""
    return not region.error and not any(
        (region.saved, *vars(region.accuracy_cost).values(), *vars(region.time_gained).values())
    )


def cost_per_time(region: RegionCost) -> float:
    """Return a region's accuracy cost over the time that it saves: what is given back first.

    It is infinite where it costs accuracy and saves nothing; what is not known is least.
    """
    cost, gain = region.accuracy_cost.value, region.time_gained.value
    if region.error or math.isnan(cost) or math.isnan(gain):
        return -math.inf
    if gain <= 0:
        return math.inf if cost > 0 else 0.0
    return cost / gain
