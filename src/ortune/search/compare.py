"""How one trial stands to another: pure functions over records."""

from __future__ import annotations

from ortune.core.backend import Backend
from ortune.core.trial import Plan, Status, Trial, Verdict
from ortune.recipe.space import merge


def quicker(one: Trial, two: Trial) -> bool:
    """Whether one plan's estimate is below another's by more than 1 %."""
    return bool(one.ratio and two.ratio and one.ratio.value < 0.99 * two.ratio.value)


def apart(one: Trial, two: Trial) -> bool:
    """Whether one plan is faster than another beyond both their intervals."""
    return bool(one.ratio and two.ratio and one.ratio.high < two.ratio.low)


def transferred(found: Backend, base: Backend, plan: Plan) -> Plan:
    """Return a plan with the settings that another one's backend gained over its base."""
    return Plan(plan.recipe, merge(found, plan.backend, base))


def reaches(trial: Trial, wanted: float) -> bool:
    """Whether a finalist is proved to be at least `wanted` times as fast."""
    proved = trial.score is not None and trial.score.verdict is Verdict.PROVED
    return bool(
        trial.status is Status.OK and proved and trial.ratio and trial.ratio.high <= 1 / wanted
    )
