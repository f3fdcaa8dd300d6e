"""What to try where a fast plan fails the budget: the accuracy kit of its quantizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortune.core.facts import Facts
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan, Status, Trial

WORTH = 0.97
"""A failed plan is worth saving from 3 % less latency than the best that keeps the budget."""


def worth_saving(trials: Sequence[Trial], best: Trial | None) -> list[Trial]:
    """Return the plans that fail for accuracy alone and are clearly faster, fastest first.

    One a quantizer: what saves one of its settings is tried with the fastest of them.

    Args:
        trials: All so far.
        best: The fastest that keeps the budget.
    """
    limit = WORTH * best.ratio.value if best is not None and best.ratio is not None else WORTH
    failed = [
        t
        for t in trials
        if t.status is Status.FAILS and t.ratio is not None and t.ratio.value < limit
    ]
    found: dict[tuple[type[Step], type], Trial] = {}
    for trial in sorted(failed, key=lambda t: t.ratio.value if t.ratio else 1.0):
        step = _last(trial.plan)
        if step is not None:
            found.setdefault((type(step), type(trial.plan.backend)), trial)
    return list(found.values())


def rescues(failed: Trial, facts: Facts) -> Iterator[Plan]:
    """Yield the plans that may bring a failed one back into the budget, best bet first."""
    step = _last(failed.plan)
    if step is None:
        return
    before = failed.plan.recipe.steps[:-1]
    for steps in step.rescues(facts):
        name = " + ".join(str(one) for one in steps)
        yield Plan(Recipe(name, (*before, *steps)), failed.plan.backend)


def _last(plan: Plan) -> Quantizer | None:
    """The quantizer that ends a recipe; None for what is a rescue itself, or exact."""
    lossy = [step for step in plan.recipe.steps if isinstance(step, Quantizer)]
    if len(lossy) != 1 or plan.recipe.steps[-1] is not lossy[0]:
        return None
    return lossy[0]
