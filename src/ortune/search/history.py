"""What the history of a winner measures: what each kind of change brings by itself."""

from __future__ import annotations

from ortune.core.backend import Backend
from ortune.core.step import Recipe, Transform
from ortune.core.trial import Plan


def parts(best: Plan, base: Backend) -> list[tuple[str, Plan]]:
    """Return name and plan of the changes that led to the best one, on the original's backend."""
    exact = tuple(step for step in best.recipe.steps if isinstance(step, Transform))
    found = [("graph", Plan(Recipe("clean", exact), base))] if exact else []
    if best.recipe.lossy:
        found.append(("quantization", Plan(best.recipe, base)))
    return found


def last(best: Plan, base: Backend) -> str:
    """Return the name of the last change, that to the best plan itself."""
    if best.backend != base:
        return "runtime"
    return "quantization" if best.recipe.lossy else "graph"
