"""A recipe whose regions differ in precision: some are given back to float."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace

from ortune.core.step import Recipe, Step
from ortune.core.wording import count
from ortune.quantization.node_filter import literally
from ortune.quantization.roles import PREPARES, deciding, role, static_int8
from ortune.regions.survey import Survey


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
        left: Names of regions; nodes of them are excluded by name, whatever it looks like.
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
        if more.intersection(found := set(map(literally, region.nodes))) and found <= more | former
    )
    return left if mixed(survey, left).steps == recipe.steps else None


def _without(steps: tuple[Step, ...], nodes: Iterator[str]) -> tuple[Step, ...]:
    at = deciding(steps)
    assert at is not None, "a survey is of a recipe that decides"
    old = steps[at]
    patterns = tuple(dict.fromkeys([*_excluded(old), *map(literally, nodes)]))
    new = _with(old, "exclude", patterns)
    return (*(_prepared(step, old, new) for step in steps[:at]), new, *steps[at + 1 :])


def _prepared(step: Step, old: Step, new: Step) -> Step:
    """Return a step in front of the deciding one; some look ahead to it."""
    if role(step) not in PREPARES or "before" not in _names(step):
        return step
    meant = getattr(step, "before", None) or static_int8()
    return _with(step, "before", new) if meant == old else step


def _nodes(survey: Survey, left: Collection[str]) -> Iterator[str]:
    for region in survey.regions:
        if region.region in left:
            yield from region.nodes


def _excluded(step: Step) -> tuple[str, ...]:
    return tuple(getattr(step, "exclude", ()))


def _with(step: Step, name: str, value: object) -> Step:
    return replace(step, **{name: value})


def _names(step: Step) -> frozenset[str]:
    return frozenset(field.name for field in fields(step))
