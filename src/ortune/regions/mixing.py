"""A recipe whose regions differ in precision: some are given back to float arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.wording import count
from ortune.quantization.node_filter import literally
from ortune.quantization.roles import Role, deciding, role
from ortune.regions.leaving import following
from ortune.regions.survey import RegionCost, Survey

S = TypeVar("S", bound=Step)


@dataclass(frozen=True)
class GivenBack:
    """What becomes of the regions that lose the surveyed precision.

    Attributes:
        left: Those that stay in float.
        stored: Those whose weights alone are stored in integers.
        step: That stores them; None where none is.
    """

    left: frozenset[str]
    stored: frozenset[str] = frozenset()
    step: Quantizer | None = None

    def __bool__(self) -> bool:
        """Whether any region loses the surveyed precision."""
        return bool(self.left or self.stored)


def mixable(recipe: Recipe) -> bool:
    """Whether the step that decides a recipe's precision can leave nodes in float, by name."""
    at = deciding(recipe.steps)
    return at is not None and "exclude" in _names(recipe.steps[at])


def mixed(survey: Survey, parts: GivenBack) -> Recipe:
    """Return a survey's recipe with some of its regions in float, or with integer weights alone.

    What the deciding step excludes already stays excluded; a preparing step in front of it that
    repeats it in `before`, or means it by default, follows. The step that stores weights comes
    behind the deciding one, with the names of the layers that it takes: it renames them.

    Args:
        survey: Of a mixable recipe.
        parts: Names of regions; layers of them are excluded by name, whatever it looks like.
    """
    recipe = survey.plan.recipe
    if not parts:
        return recipe
    at = deciding(recipe.steps)
    assert at is not None, "a survey is of a recipe that decides"
    steps = _without(recipe.steps, at, _nodes(survey, parts.left | parts.stored))
    told = [(parts.left, "float")]
    if parts.step is not None:
        own: dict[str, Any] = {"include": tuple(map(literally, _nodes(survey, parts.stored)))}
        steps = (*steps[: at + 1], replace(bare(parts.step), **own), *steps[at + 1 :])
        told.append((parts.stored, parts.step.name()))
    every = count(len(survey.regions), "region")
    some = (f"{len(names)} of {every} in {how}" for names, how in told if names)
    return Recipe(", ".join([recipe.name, *some]), steps)


def bare(step: S) -> S:
    """Return a step that names no nodes."""
    changes: dict[str, Any] = dict.fromkeys({"include", "exclude"} & _names(step), ())
    return replace(step, **changes)


def parted(survey: Survey, recipe: Recipe) -> GivenBack | None:
    """Return what a recipe does with regions, as `mixed` made it; None if it did not.

    The recipe's name does not count.
    """
    old, steps = survey.plan.recipe.steps, recipe.steps
    at = deciding(old)
    if at is None or len(steps) < len(old) or not mixable(recipe):
        return None
    step, taken = None, frozenset[str]()
    if len(steps) > len(old) and role(steps[at + 1]) is Role.WEIGHTS:
        more = steps[at + 1]
        assert isinstance(more, Quantizer)
        step, taken = bare(more), frozenset(getattr(more, "include", ()))
        steps = (*steps[: at + 1], *steps[at + 2 :])
    former = frozenset(_excluded(old[at]))
    named = frozenset(_excluded(steps[at])) - former
    back, stored = _within(survey, named, former), _within(survey, taken, former)
    parts = GivenBack(back - stored, stored & back, step)
    if step is not None and not parts.stored:
        return None
    return parts if mixed(survey, parts).steps == recipe.steps else None


def _within(survey: Survey, named: frozenset[str], former: frozenset[str]) -> frozenset[str]:
    """Return the regions that are all named, but for what the surveyed step names itself."""
    return frozenset(
        region.region
        for region in survey.regions
        if named.intersection(found := set(map(literally, _named(region))))
        and found <= named | former
    )


def _without(steps: tuple[Step, ...], at: int, nodes: Iterator[str]) -> tuple[Step, ...]:
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
