"""What integer weights alone bring where regions are given back: by trials of this run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ortune.core.step import Quantizer
from ortune.core.trial import Status, Trial
from ortune.quantization.roles import Role, role
from ortune.regions.mixing import bare
from ortune.search.expectation.strain import lost
from ortune.search.policy import View

_PRODUCTS = frozenset({"MatMul", "Gemm"})
"""Layers that runtimes compute faster with integer weights; of others the file alone shrinks."""
_LEAST = 0.05
"""Of what the plan saves: less is not worth a step more."""
_MOST = 0.95
"""Otherwise the plan of integer weights alone is as fast, and needs no mixture."""
_TINY = 1e-3


@dataclass(frozen=True)
class Storing:
    """A step that stores weights, and what it does to a region beside a surveyed plan's step.

    Attributes:
        step: Without the names of nodes.
        gains: Of the time that the plan's step saves, the share that this one saves.
        loses: Of what the plan's step loses, the share that this one loses.
    """

    step: Quantizer
    gains: float
    loses: float

    @classmethod
    def of(cls, whole: Trial, view: View) -> Storing | None:
        """Return it where integer weights alone keep the budget and are faster than float there.

        Both are compared whole: what a region saves or loses is taken to be in proportion.

        Args:
            whole: The trial of the surveyed plan, timed and scored.
        """
        own, plain = _ratio(whole), view.exact_ratio(whole.plan.backend)
        found = [(t, step) for t in _there(whole, view) if (step := _stores(t)) is not None]
        kept = [one for one in found if one[0].status is not Status.FAILS]
        if not kept or plain <= own:
            return None
        trial, step = min(kept, key=lambda one: _ratio(one[0]))
        gains = (plain - _ratio(trial)) / (plain - own)
        if gains < _LEAST:
            return None
        return cls(step, min(_MOST, gains), _share(trial, whole, view))

    def takes(self, ops: Iterable[str]) -> bool:
        """Whether it computes all layers of a region faster than float does."""
        return bool(found := set(ops)) and found <= _PRODUCTS


def _there(whole: Trial, view: View) -> Iterable[Trial]:
    """Yield what was timed where the plan runs."""
    for trial in view.trials:
        if trial.part == "search" and trial.plan.backend == whole.plan.backend and trial.ratio:
            yield trial


def _stores(trial: Trial) -> Quantizer | None:
    """Return the step of a plan that stores weights and rounds nothing else, scored."""
    found = [step for step in trial.plan.recipe.steps if isinstance(step, Quantizer)]
    if len(found) != 1 or role(found[0]) is not Role.WEIGHTS or trial.score is None:
        return None
    return found[0] if found[0] == bare(found[0]) else None


def _share(trial: Trial, whole: Trial, view: View) -> float:
    """Return what storing loses over what the plan loses."""
    assert view.budget is not None and trial.score is not None and whole.score is not None
    stored, own = lost(trial.score, view.budget), lost(whole.score, view.budget)
    if not math.isfinite(own):
        return 0.0
    return min(1.0, stored / max(own, _TINY)) if math.isfinite(stored) else 1.0


def _ratio(trial: Trial) -> float:
    return trial.ratio.value if trial.ratio else math.inf
