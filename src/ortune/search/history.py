"""The history of a winner: what each kind of change brings by itself, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ortune.core.backend import Backend
from ortune.core.step import Recipe, Transform
from ortune.core.study import Contribution
from ortune.core.trial import Plan, Proposal, Trial
from ortune.experiment.evaluate import Attempts


def explained(
    attempts: Attempts,
    best: Trial | None,
    base: Backend,
    takes: Callable[[], float],
    left: Callable[[], float],
) -> Iterator[Contribution]:
    """Measure what each kind of change brought on the way to the winner, while there is time.

    Args:
        best: The winner, if there is one.
        base: The original's backend.
        takes: Seconds that one needs, with what follows it, by now.
        left: Seconds, by now.
    """
    yield Contribution("baseline", attempts.ledger.trials[0].key)
    if best is None:
        return
    for name, plan in parts(best.plan, base):
        key = attempts.key(plan)
        if key == best.key:
            continue
        known = attempts.ledger.find(key, "search")
        timed = known is not None and known.taken("search") and not known.stopped
        if not timed and left() < takes():
            attempts.note(f"time is up: what {name} alone brings was not measured")
            continue
        proposal = Proposal(plan, "history", f"what {name} alone brings")
        trial = attempts.one(proposal, always_score=True)
        if trial.ratio is not None:
            yield Contribution(name, trial.key)
    yield Contribution(last(best.plan, base), best.key)


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
