"""Which regions go back to float first, and how the steps of a recipe say so.

Times of regions add nearly and so do their losses (arXiv 2505.13060), so regions go back in the
order of what accuracy they bring for the time that they take. How many of that order is found by
trials (`ortune.search.expectation.mixtures`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.roles import PREPARES, find_deciding_step, find_step_role, make_static_int8
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.wording import format_count
from ortune.graph.ir import edit
from ortune.quantizers.common.nodes import escape_pattern
from ortune.search.mixed_precision.survey import Survey

S = TypeVar("S", bound=Step)

_TINY = 0.001  # share of the original's latency below which a gain that may be none counts as none
_PLACE_RULES: dict[str, Any] = {"keep_first": 0, "head": True}
"""Fields that leave layers in float by their place among those that are quantized -> the value
with which none is left."""


@dataclass(frozen=True)
class RegionCosts:
    """What regions lose and save at the surveyed precision, as sums over them.

    Attributes:
        losses: Region -> what it loses alone; those that were measured and make a difference.
        gains: Region -> the share of the original's latency that it saves, where that is known.
        shared: Two neighbours -> what either loses alone and both together once: what flows
            between them is rounded for either.
        unmeasured: Regions whose loss or gain is not known: they stay in float.
    """

    losses: dict[str, float]
    gains: dict[str, float]
    shared: dict[tuple[str, str], float]
    unmeasured: frozenset[str]

    @classmethod
    def from_survey(cls, survey: Survey) -> RegionCosts:
        """Read a survey. What seems to gain accuracy loses none."""
        losses: dict[str, float] = {}
        gains: dict[str, float] = {}
        unmeasured: set[str] = set()
        for region in survey.regions:
            loss, gained = region.accuracy_cost.value, region.time_gained
            gain = gained.value
            if not (gained.low > 0 or gained.high < 0) and gain < _TINY:
                gain = min(0.0, gain)  # next to nothing, and maybe none
            if math.isfinite(gain):
                gains[region.region] = gain
            if region.error or not (math.isfinite(loss) and math.isfinite(gain)):
                unmeasured.add(region.region)
            elif gain or loss > 0:
                losses[region.region] = max(0.0, loss)
        shared = {
            (pair.one, pair.two): pair.cost
            for pair in survey.shared
            if pair.one in losses and pair.two in losses
        }
        return cls(losses, gains, shared, frozenset(unmeasured))

    def total_loss(self, in_float: Collection[str] = ()) -> float:
        """Return what the regions lose that are not in float, what neighbours share once."""
        single = (loss for name, loss in self.losses.items() if name not in in_float)
        twice = (
            cost
            for pair, cost in self.shared.items()
            if not any(name in in_float for name in pair)
        )
        return max(0.0, math.fsum(single) - math.fsum(twice))

    def time_cost(self, in_float: Collection[str]) -> float:
        """Return the share of the original's latency that regions in float no longer save."""
        return math.fsum(gain for name, gain in self.gains.items() if name in in_float)

    def order_moves(self) -> list[tuple[str, ...]]:
        """Return what goes back to float together, most accuracy for its time first.

        That is a region, or two neighbours where both bring more for their time than either
        alone: the one that stays would still round what flows between them.
        """
        remaining = dict.fromkeys(self.losses)
        neighbours: dict[str, dict[str, float]] = {name: {} for name in self.losses}
        for (first, second), cost in self.shared.items():
            neighbours[first][second] = neighbours[second][first] = cost

        def rate(names: tuple[str, ...]) -> float:
            brings = sum(self.losses[name] for name in names)
            for name in names:
                brings -= sum(c for other, c in neighbours[name].items() if other in remaining)
            if len(names) == 2:  # what the two share was taken off twice, and goes once
                brings += neighbours[names[0]][names[1]]
            time = sum(self.gains[name] for name in names)
            return max(0.0, brings) / time if time > 0 else math.inf

        moves: list[tuple[str, ...]] = []
        while remaining:
            pairs = (pair for pair in self.shared if all(name in remaining for name in pair))
            best = max([*((name,) for name in remaining), *pairs], key=rate)
            moves.append(best)
            for name in best:
                del remaining[name]
        return moves


# --- recipes ------------------------------------------------------------------------------------


def can_mix(recipe: Recipe) -> bool:
    """Whether the step that decides a recipe's precision can leave nodes in float, by name."""
    at = find_deciding_step(recipe.steps)
    return at is not None and "exclude" in _field_names(recipe.steps[at])


def mix_recipe(survey: Survey, in_float: Collection[str]) -> Recipe:
    """Return a survey's recipe with some of its regions, by name, in float.

    What the deciding step excludes already stays excluded; layers are excluded by name,
    whatever it looks like.
    """
    recipe = survey.plan.recipe
    if not in_float:
        return recipe
    at = find_deciding_step(recipe.steps)
    assert at is not None, "a survey is of a recipe that decides"
    nodes = [
        name
        for region in survey.regions
        if region.region in in_float
        for name in region.layers or region.nodes
    ]
    new = _exclude_names(recipe.steps[at], nodes)
    changes: dict[str, Any] = {"before": new}

    def prepares(step: Step) -> bool:
        named = find_step_role(step) in PREPARES and "before" in _field_names(step)
        return named and (getattr(step, "before", None) or make_static_int8()) == recipe.steps[at]

    before = (replace(step, **changes) if prepares(step) else step for step in recipe.steps[:at])
    steps = (*before, new, *recipe.steps[at + 1 :])
    total = format_count(len(survey.regions), "region")
    return Recipe(f"{recipe.name}, {len(in_float)} of {total} in float", steps)


def parse_assignment(survey: Survey, recipe: Recipe) -> frozenset[str] | None:
    """Return the regions that a recipe leaves in float, as `mix_recipe` made it; None if it did
    not.

    The recipe's name does not count.
    """
    old, steps = survey.plan.recipe.steps, recipe.steps
    at = find_deciding_step(old)
    if at is None or len(steps) != len(old) or not can_mix(recipe):
        return None
    former = frozenset(getattr(old[at], "exclude", ()))
    named = frozenset(getattr(steps[at], "exclude", ())) - former
    in_float = frozenset(
        region.region
        for region in survey.regions
        if named.intersection(layers := set(map(escape_pattern, region.layers or region.nodes)))
        and layers <= named | former
    )
    return in_float if mix_recipe(survey, in_float).steps == recipe.steps else None


def strip_node_filters(step: S) -> S:
    """Return a step that names no nodes."""
    changes: dict[str, Any] = dict.fromkeys({"include", "exclude"} & _field_names(step), ())
    return replace(step, **changes)


def exclude_nodes(step: Quantizer, model: ir.Model, names: Iterable[str]) -> Quantizer:
    """Return a step that leaves further nodes in float, and what it leaves by itself.

    Rules that go by place, the first convolutions and the head, are written out as names: without
    the nodes that are given back they would mean other layers.

    Args:
        model: As the step gets it; left as it is.
        names: Of nodes; each must be in the model.

    Raises:
        Refused: The step has no field for names.
    """
    field_names = _field_names(step)
    if "exclude" not in field_names:
        raise Refused(
            f"{step.name()} quantizes all that it can: it leaves no node out by name",
            fix="use int8-static, int8-dynamic, int8-weights or int4-weights",
        )
    freed = replace(
        step, **{name: value for name, value in _PLACE_RULES.items() if name in field_names}
    )
    nodes = [*names]
    if freed != step:
        present = {str(node.name) for node in edit.walk_nodes(model)}
        chosen = _list_quantized(step, model)
        nodes += [n for n in _list_quantized(freed, model) if n not in chosen and n in present]
    return _exclude_names(freed, nodes)


def isolate_region(
    step: Quantizer, model: ir.Model, region_layers: Collection[str], all_layers: Iterable[str]
) -> Quantizer:
    """Return a step that leaves all layers in float but those of one region."""
    single = exclude_nodes(step, model, [name for name in all_layers if name not in region_layers])
    changes: dict[str, Any] = {"leave_worst": 0}  # of one region its layers would be the worst
    return replace(single, **changes) if hasattr(single, "leave_worst") else single


def _exclude_names(step: Step, nodes: Iterable[str]) -> Quantizer:
    assert isinstance(step, Quantizer)
    patterns = dict.fromkeys((*getattr(step, "exclude", ()), *map(escape_pattern, nodes)))
    changes: dict[str, Any] = {"exclude": tuple(patterns)}
    return replace(step, **changes)


def _list_quantized(step: Quantizer, model: ir.Model) -> dict[str, None]:
    """Return the names of the layers that a step would quantize."""
    choose = getattr(step, "select_layers", None)
    layers = [] if choose is None else choose(model.clone())
    return {str(layer.node.name): None for layer in layers}


def _field_names(step: Step) -> frozenset[str]:
    return frozenset(field.name for field in fields(step))
