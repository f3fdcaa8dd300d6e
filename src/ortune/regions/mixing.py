"""A recipe whose regions differ in precision: some are given back to float."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import Any

from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.wording import count
from ortune.quantization.node_filter import literally
from ortune.quantization.roles import deciding
from ortune.regions.leaving import following
from ortune.regions.survey import RegionCost, Survey


def mixable(recipe: Recipe) -> bool:
    """Whether the step that decides a recipe's precision can leave nodes in float, by name."""
    at = deciding(recipe.steps)
    return at is not None and "exclude" in _names(recipe.steps[at])


def mixed(survey: Survey, left: Collection[str]) -> Recipe:
    """Return a survey's recipe with some of its regions left in float.

    What the deciding step excludes already stays excluded; a preparing step in front of it that
    repeats it in `before`, or means it by default, follows.

    Args:
        survey: Of a mixable recipe.
        left: Names of regions; layers of them are excluded by name, whatever it looks like.
    """
    recipe = survey.plan.recipe
    if not left:
        return recipe
    steps = _without(recipe.steps, _nodes(survey, left))
    some = f"{len(left)} of {count(len(survey.regions), 'region')} in float"
    return Recipe(f"{recipe.name}, {some}", steps)


def left_in_float(survey: Survey, recipe: Recipe) -> frozenset[str] | None:
    """Return which regions a recipe leaves in float, as `mixed` made it; None if it did not.

    The recipe's name does not count.
    """
    at = deciding(survey.plan.recipe.steps)
    if at is None or len(recipe.steps) <= at or not mixable(recipe):
        return None
    former = set(_excluded(survey.plan.recipe.steps[at]))
    more = set(_excluded(recipe.steps[at])) - former
    left = frozenset(
        region.region
        for region in survey.regions
        if more.intersection(found := set(map(literally, _named(region))))
        and found <= more | former
    )
    return left if mixed(survey, left).steps == recipe.steps else None


def _without(steps: tuple[Step, ...], nodes: Iterator[str]) -> tuple[Step, ...]:
    at = deciding(steps)
    assert at is not None, "a survey is of a recipe that decides"
    old = steps[at]
    assert isinstance(old, Quantizer)
    patterns = tuple(dict.fromkeys([*_excluded(old), *map(literally, nodes)]))
    changes: dict[str, Any] = {"exclude": patterns}
    return following(steps, at, replace(old, **changes))


def _nodes(survey: Survey, left: Collection[str]) -> Iterator[str]:
    for region in survey.regions:
        if region.region in left:
            yield from _named(region)


def _named(region: RegionCost) -> tuple[str, ...]:
    return region.layers or region.nodes


def _excluded(step: Step) -> tuple[str, ...]:
    return tuple(getattr(step, "exclude", ()))


def _names(step: Step) -> frozenset[str]:
    return frozenset(field.name for field in fields(step))
