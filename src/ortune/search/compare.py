"""How one trial stands to another: pure functions over records."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core.acceptance import accepted
from ortune.core.trial import Status, Trial, Verdict
from ortune.recipe.descent import GAIN


def faster(trials: Sequence[Trial]) -> list[Trial]:
    """Return verified plans that may be faster than the original, fastest first.

    Accuracy that is only likely will do: proof may come with all samples.

    Args:
        trials: The original first.
    """
    fit = [
        t
        for t in trials
        if t.part == "search"
        and t.key != trials[0].key
        and accepted(t, strict=False)
        and t.ratio is not None
        and t.ratio.value < 1
    ]
    return sorted(fit, key=lambda t: t.ratio.value if t.ratio else 1.0)


def quicker(one: Trial, two: Trial) -> bool:
    """Whether one plan's estimate is below another's by more than 1 %."""
    return bool(one.ratio and two.ratio and one.ratio.value < GAIN * two.ratio.value)


def apart(one: Trial, two: Trial) -> bool:
    """Whether one plan is faster than another beyond both their intervals."""
    return bool(one.ratio and two.ratio and one.ratio.high < two.ratio.low)


def reaches(trial: Trial, wanted: float) -> bool:
    """Whether a finalist is proved to be at least `wanted` times as fast."""
    proved = trial.score is not None and trial.score.verdict is Verdict.PROVED
    return bool(
        trial.status is Status.OK and proved and trial.ratio and trial.ratio.high <= 1 / wanted
    )
