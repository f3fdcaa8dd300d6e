"""What a search expects of plans that it has not tried: latency, accuracy, seconds.

Latencies add up in their logarithms from what a plan is made of: where it runs, the arithmetic of
its float layers, its quantizers, their options, its settings. Each has a prior, widest where least
is known beforehand, and all trials of the run speak on it. Losses of accuracy are told apart into
those of the recipe and those of the backend's arithmetic, which add up as losses do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ortune.core.step import Recipe, Step
from ortune.core.trial import Plan, Status, Trial
from ortune.search.expectation import priors
from ortune.search.expectation.durations import Durations, measured
from ortune.search.expectation.features import families, hint, latency_features, strain_features
from ortune.search.expectation.priors import Priors, elsewhere
from ortune.search.expectation.strain import LEAST, spread, strain, together
from ortune.search.expectation.surrogate import Normal, Observed, Surrogate
from ortune.search.policy import View

_SAME, _EXACT = Normal(0.0, 0.0), Normal(LEAST, 0.0)


@dataclass(frozen=True)
class Expected:
    """What a plan would probably bring.

    Attributes:
        latency: Logarithm of its latency over the original's.
        keeps: The chance that it runs and keeps the budget.
        seconds: What trying it costs.
        strain: Logarithm of what it loses over what the budget lets it lose.
        size: Logarithm of the bytes of its files over the original's.
    """

    latency: Normal
    keeps: float
    seconds: float
    size: Normal = _SAME
    strain: Normal = _EXACT

    def worth(self, best: float) -> float:
        """Return the expected gain over the best log-ratio so far."""
        return self.keeps * self.latency.gain(best)


class Expectations:
    """What is expected by all trials of a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._fitted = priors.load()
        self._numbers = self._fitted.numbers
        self._priors = Priors(view)
        self.durations = Durations(view)

    def of(self, plans: Sequence[Plan]) -> list[Expected]:
        """Return what is expected of each plan."""
        latencies = self._latency.expect([latency_features(plan) for plan in plans])
        strains = self._strain.expect([strain_features(plan.recipe) for plan in plans])
        return [
            self._expected(plan, latency, self._lost(plan, recipe))
            for plan, latency, recipe in zip(plans, latencies, strains, strict=True)
        ]

    def _expected(self, plan: Plan, latency: Normal, lost: Normal) -> Expected:
        died = self._died[hint(plan.backend), families(plan.recipe)]
        runs = self._numbers["runs"] * self._numbers["runs again"] ** died
        keeps = runs * lost.below(0.0) if plan.lossy else runs
        return Expected(latency, keeps, self.durations.of(plan), self.size(plan.recipe), lost)

    def _lost(self, plan: Plan, recipe: Normal) -> Normal:
        """Return a plan's strain, by that of its recipe where its answers are not known."""
        if not plan.lossy:
            return _EXACT
        known = self._answers.get((plan.recipe.steps, hint(plan.backend)))
        if known is not None:
            return Normal(known, self._numbers["same answers"])
        backend = self._hinted(plan) if plan.backend.lossy else _EXACT
        recipe = recipe if plan.recipe.lossy else _EXACT
        sd = math.hypot(recipe.sd, backend.sd, self._numbers["repeats"])
        return Normal(together(recipe.mean, backend.mean), sd)

    def size(self, recipe: Recipe) -> Normal:
        """Return the logarithm of a plan's size over the original's: as built, or as usual."""
        known = self._sizes.get(recipe.steps)
        if known is not None:
            return Normal(math.log(known), 0.0)
        sizes = self._fitted.sizes
        usual = min((sizes.get(name, 1.0) for name in families(recipe)), default=1.0)
        return Normal(math.log(usual), self._numbers["size sd"] if usual < 1 else 0.0)

    @cached_property
    def _sizes(self) -> dict[tuple[Step, ...], float]:
        original = self._view.trials[0].size or 0
        found = ((t.plan.recipe.steps, t.size) for t in self._view.trials if original)
        return {steps: size / original for steps, size in found if size}

    # --- records ----------------------------------------------------------------------------

    @cached_property
    def _measured(self) -> list[Trial]:
        return measured(self._view)

    @cached_property
    def _died(self) -> Counter[tuple[str, frozenset[str]]]:
        """Return how often quantizers died under a hint, other than while they were built."""
        found = (t for t in self._view.trials if t.status is Status.FAILED and t.reproduce)
        return Counter((hint(t.plan.backend), families(t.plan.recipe)) for t in found)

    @cached_property
    def _latency(self) -> Surrogate:
        records = [
            Observed(
                latency_features(t.plan),
                min(math.log(self._fitted.levels["slowest"]), math.log(t.ratio.value)),
                self._noise(t),
            )
            for t in self._measured
            if t.ratio is not None
        ]
        return Surrogate(
            self._priors.latency, [*elsewhere(self._view.paid, self._view.facts), *records]
        )

    def _noise(self, trial: Trial) -> float:
        """Return how little a trial tells of others: what is far slower than the original has a
        reason of its own, that other plans need not share."""
        assert trial.ratio is not None
        levels = self._fitted.levels
        slow = min(math.log(levels["slowest"]), max(0.0, math.log(trial.ratio.value)))
        short = trial.stopped or trial.effort == "screen"
        noise = self._numbers["noise of a block" if short else "noise of a pair"]
        return noise + levels["noise of slow"] * slow

    def _hinted(self, plan: Plan) -> Normal:
        """Return a float model's strain under a hint that changes answers, as scored or usual."""
        place = hint(plan.backend)
        return self._hints.get(place) or self._priors.strain(f"hint:{place}")

    @cached_property
    def _hints(self) -> dict[str, Normal]:
        """Return hint -> strain of the float model under it, where one was scored."""
        found: dict[str, list[float]] = {}
        for trial in self._scored:
            if trial.plan.backend.lossy and not trial.plan.recipe.lossy:
                found.setdefault(hint(trial.plan.backend), []).append(self._strained(trial))
        return {
            place: Normal(fmean(values), self._fitted.levels["strain noise"])
            for place, values in found.items()
        }

    @cached_property
    def _scored(self) -> list[Trial]:
        return [t for t in self._measured if t.score is not None and self._view.budget is not None]

    @cached_property
    def _answers(self) -> dict[tuple[tuple[Step, ...], str], float]:
        """Return a recipe's steps and the hint it ran under -> the least of its strains there."""
        found: dict[tuple[tuple[Step, ...], str], float] = {}
        for trial in self._scored:
            at = trial.plan.recipe.steps, hint(trial.plan.backend)
            found[at] = min(self._strained(trial), found.get(at, math.inf))
        return found

    def _strained(self, trial: Trial) -> float:
        assert trial.score is not None
        assert self._view.budget is not None
        return strain(trial.score, self._view.budget)

    @cached_property
    def _strain(self) -> Surrogate:
        """Return what is expected of recipes, by those scored where the backend adds little."""
        records = []
        for trial in self._scored:
            if not trial.plan.recipe.lossy:
                continue
            assert trial.score is not None
            assert self._view.budget is not None
            found, noise = (
                self._strained(trial),
                max(self._fitted.levels["strain noise"], spread(trial.score, self._view.budget)),
            )
            if trial.plan.backend.lossy:
                found = _apart(found, self._hinted(trial.plan).mean)
                noise = max(noise, self._numbers["repeats"])
            records.append(Observed(strain_features(trial.plan.recipe), found, noise))
        return Surrogate(self._priors.strain, records)


def _apart(both: float, one: float) -> float:
    """Return the strain that makes `both` together with another, at least a third less."""
    if both - one < 0.2:
        return both - 1.0
    return both + math.log1p(-math.exp(one - both))
