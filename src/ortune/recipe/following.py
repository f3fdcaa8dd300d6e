"""Plans that follow from what became of another: less where it fails, more where it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from ortune.core.facts import Facts
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan


def rescued(plan: Plan, facts: Facts) -> Iterator[Plan]:
    """Yield what may bring a plan back into the budget, best bet first."""
    last = plan.recipe.quantizer
    if last is not None:
        for steps in last.rescues(facts):
            yield _named(plan, plan.recipe.steps[:-1], steps)


def extended(plan: Plan, facts: Facts) -> Iterator[Plan]:
    """Yield what goes further than a plan that keeps the budget, prepared by the same steps."""
    steps = plan.recipe.steps
    last = steps[-1] if steps else None
    if not isinstance(last, Quantizer):
        return
    kit = len(steps) - 1
    while kit and (isinstance(steps[kit - 1], Quantizer) or _named_in(plan, steps[kit - 1])):
        kit -= 1
    for more in last.extensions(facts):
        yield _named(plan, steps[:kit], (*(_ahead(one, more) for one in steps[kit:-1]), more))


def _named(plan: Plan, before: tuple[Step, ...], steps: tuple[Step, ...]) -> Plan:
    name = " + ".join(str(one) for one in steps)
    return Plan(Recipe(name, (*before, *steps)), plan.backend)


def _named_in(plan: Plan, step: Step) -> bool:
    """Whether a recipe is called by a step too, as a rescue is by its kit."""
    return str(step) in plan.recipe.name.split(" + ")


def _ahead(step: Step, last: Quantizer) -> Step:
    """Return a step that prepares weights with the one that it prepares them for."""
    if any(one.name == "before" for one in fields(step)):
        return replace(step, before=last)  # type: ignore[call-arg]
    return step
