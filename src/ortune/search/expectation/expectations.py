"""What a search expects of plans that it has not tried: latency, accuracy, seconds.

Latencies add up in their logarithms from what a plan is made of: where it runs, the arithmetic of
its float layers, its quantizers, their options, its settings. Each has a prior, widest where least
is known beforehand, and all trials of the run speak on it. Losses of accuracy are told apart into
those of the recipe and those of the backend's arithmetic, which add up as losses do. Strains say
on one scale for all metrics how near a score lies to its budget.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.step import Recipe, Step
from ortune.core.trial import Plan, Score, Status, Trial, Verdict
from ortune.search.expectation import features, priors
from ortune.search.expectation.priors import Durations, Priors, list_timed_trials
from ortune.search.expectation.surrogate import Normal, Observation, Surrogate
from ortune.search.policy import View

LEAST, MOST = -3.0, 4.0
"""Strains are cut off here: a plan that loses a twentieth of what it may is as good as exact."""
_TOUCHING = 0.05
_CERTAIN = 0.05
"""Share beyond the limit, at least, where the verdict says which side of it a plan is on."""
_WHOLE = 1e-6
_SILENT = 3000.0  # decibels beyond which a loss is as good as infinite


def log_budget_utilization(score: Score, budget: Budget) -> float:
    """Return the logarithm of what a plan loses over what the budget lets it lose.

    0 is the limit, below it the budget is kept. Decibels are logarithms already. The verdict
    decides the sign: it may rest on a share of the samples where the value is their mean.
    """
    over = _raw_utilization(score, budget)
    if math.isnan(over):
        return MOST
    power = 2 if budget.metric.decibels else 1
    value = math.log(over) / power if over > 0 else LEAST
    value = min(MOST, max(LEAST, value))
    fails = score.verdict is Verdict.FAILS
    return max(value, _TOUCHING) if fails else min(value, -_TOUCHING)


def _raw_utilization(score: Score, budget: Budget) -> float:
    """Return what is lost over what may be lost, decibels as power; infinite where nothing may."""
    bound = budget.bound(score.base)
    better = 1 if budget.metric.higher_is_better else -1
    if budget.metric.decibels:
        decibels = better * (bound - score.value)
        return math.inf if decibels > _SILENT else float(10 ** (decibels / 10))
    gone, allowed = better * (score.base - score.value), better * (score.base - bound)
    return gone / allowed if allowed > 0 else math.inf if gone > 0 else 0.0


def log_utilization_sd(score: Score, budget: Budget) -> float:
    """Return the standard deviation that chance gives the strain of counted answers; 0 of others.

    As many answers as were lost might as well have been their root more or fewer.
    """
    n = max(1, score.samples)
    counts = (score.value * n, score.base * n)
    if any(abs(count - round(count)) > _WHOLE or not 0 <= round(count) <= n for count in counts):
        return 0.0
    gone, allowed = abs(counts[0] - counts[1]), abs(score.base - budget.bound(score.base)) * n
    if max(gone, allowed) <= 0:
        return 0.0
    return math.log1p(math.sqrt(max(1.0, gone)) / max(gone, allowed))


def budget_utilization(score: Score, budget: Budget) -> float:
    """Return what a plan loses over what it may lose, in a measure that adds up over layers.

    1 is the limit. Decibels are turned into power, as errors that know nothing of each other add
    up in it. The verdict decides the side, as in `log_budget_utilization`. NaN and infinity:
    nothing is known, or nothing may be lost.
    """
    utilization = _raw_utilization(score, budget)
    if math.isnan(utilization):
        return math.nan
    utilization = max(0.0, utilization)
    fails = score.verdict is Verdict.FAILS
    return max(utilization, 1 + _CERTAIN) if fails else min(utilization, 1 - _CERTAIN)


def utilization_from_log(log_utilization: float, budget: Budget) -> float:
    """Return what is lost at a strain, in the measure of `budget_utilization`."""
    return math.exp((2 if budget.metric.decibels else 1) * log_utilization)


def float_utilization(view: View, backend: Backend) -> float:
    """Return what the float model loses under a backend's hint, over what may be lost.

    No region of a plan there gives it back. 0 where nothing is lost, or nothing was scored.
    """
    if view.budget is None or not backend.lossy:
        return 0.0
    there = features.backend_precision(backend)
    alike = (
        t
        for t in view.trials
        if not t.plan.recipe.lossy and features.backend_precision(t.plan.backend) == there
    )
    utilizations = [budget_utilization(t.score, view.budget) for t in alike if t.score is not None]
    return min((value for value in utilizations if not math.isnan(value)), default=0.0)


def combine_losses(first: float, second: float) -> float:
    """Return the strain of two independent losses that add up."""
    return max(first, second) + math.log1p(math.exp(-abs(first - second)))


_SAME, _EXACT = Normal(0.0, 0.0), Normal(LEAST, 0.0)


@dataclass(frozen=True)
class Expectation:
    """What a plan would probably bring.

    Attributes:
        latency: Logarithm of its latency over the original's.
        keeps: The chance that it runs and keeps the budget.
        log_budget_utilization: Logarithm of what it loses over what the budget lets it lose.
        size: Logarithm of the bytes of its files over the original's.
        shown: Where it keeps the budget, the chance that the samples there are can show it.
    """

    latency: Normal
    keeps: float
    seconds: float
    size: Normal = _SAME
    log_budget_utilization: Normal = _EXACT
    shown: float = 1.0

    def compute_expected_gain(self, fastest: float, to_beat: float) -> float:
        """Return the expected gain over the best log-ratios so far.

        Over the best that may be accepted where this may be too, else over the fastest: that more
        samples would do is worth knowing.
        """
        gain, lead = map(self.latency.improvement_over, (to_beat, fastest))
        return self.keeps * (self.shown * gain + (1 - self.shown) * lead)


class Expectations:
    """What is expected by all trials of a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._fitted = priors.load_fitted_numbers()
        self._numbers = self._fitted.numbers
        self._priors = Priors(view)
        self.durations = Durations(view)

    def estimate_plans(self, plans: Sequence[Plan]) -> list[Expectation]:
        """Return what is expected of each plan."""
        latencies = self._latency_surrogate.predict_plans(
            [features.latency_features(plan) for plan in plans]
        )
        strains = self._accuracy_surrogate.predict_plans(
            [features.accuracy_features(plan.recipe) for plan in plans]
        )
        expectations = []
        for plan, latency, recipe in zip(plans, latencies, strains, strict=True):
            log_utilization = self._estimate_log_utilization(plan, recipe)
            died = self._failure_counts[features.plan_family(plan)]
            runs = self._numbers["runs"] * self._numbers["runs again"] ** died
            kept, shown = (
                log_utilization.probability_below(limit) if plan.lossy else 1.0
                for limit in (0.0, self._log_reach)
            )
            seconds = self.durations.estimate_trial_s(plan)
            size = self.estimate_log_size(plan.recipe)
            shown = shown / kept if kept and self._view.may_score(plan) else 0.0
            expectations.append(
                Expectation(latency, runs * kept, seconds, size, log_utilization, shown)
            )
        return expectations

    def _estimate_log_utilization(self, plan: Plan, recipe: Normal) -> Normal:
        """Return a plan's strain, by that of its recipe where its answers are not known."""
        if not plan.lossy:
            return _EXACT
        scored = self._answers.get((plan.recipe.steps, features.backend_precision(plan.backend)))
        if scored is not None:
            return Normal(scored, self._numbers["same answers"])
        backend = self._estimate_float_model(plan) if plan.backend.lossy else _EXACT
        recipe = recipe if plan.recipe.lossy else _EXACT
        sd = math.hypot(recipe.sd, backend.sd, self._numbers["repeats"])
        return Normal(combine_losses(recipe.mean, backend.mean), sd)

    def estimate_log_size(self, recipe: Recipe) -> Normal:
        """Return the logarithm of a plan's size over the original's: as built, or as usual."""
        built_size = self._sizes.get(recipe.steps)
        if built_size is not None:
            return Normal(math.log(built_size), 0.0)
        sizes = self._fitted.sizes
        usual = min(
            (sizes.get(name, 1.0) for name in features.quantizer_names(recipe)), default=1.0
        )
        return Normal(math.log(usual), self._numbers["size sd"] if usual < 1 else 0.0)

    @cached_property
    def _sizes(self) -> dict[tuple[Step, ...], float]:
        original = self._view.trials[0].size or 0
        sizes = ((t.plan.recipe.steps, t.size) for t in self._view.trials if original)
        return {steps: size / original for steps, size in sizes if size}

    @cached_property
    def _search_timings(self) -> list[Trial]:
        return list_timed_trials(self._view)

    @cached_property
    def _failure_counts(self) -> Counter[tuple[frozenset[str], str]]:
        """Return how often plans of a family died, other than while they were built."""
        failures = (t for t in self._view.trials if t.status is Status.FAILED and t.reproduce)
        return Counter(features.plan_family(trial.plan) for trial in failures)

    @cached_property
    def _latency_surrogate(self) -> Surrogate:
        records = [
            Observation(
                features.latency_features(t.plan),
                min(math.log(self._fitted.levels["slowest"]), math.log(t.ratio.value)),
                self._estimate_noise(t),
            )
            for t in self._search_timings
            if t.ratio is not None and not t.is_disturbed_block
        ]
        return Surrogate(self._priors.latency_prior, records)

    def _estimate_noise(self, trial: Trial) -> float:
        """Return how little a trial tells of others: what is far slower than the original has a
        reason of its own, that other plans need not share."""
        assert trial.ratio is not None
        levels = self._fitted.levels
        slow = min(math.log(levels["slowest"]), max(0.0, math.log(trial.ratio.value)))
        short = trial.stopped or trial.effort == "screen"
        noise = self._numbers["noise of a block" if short else "noise of a pair"]
        return noise + levels["noise of slow"] * slow

    def _estimate_float_model(self, plan: Plan) -> Normal:
        """Return a float model's strain under a hint that changes answers, as scored or usual."""
        place = features.backend_precision(plan.backend)
        return self._float_utilizations.get(place) or self._priors.accuracy_prior(f"hint:{place}")

    @cached_property
    def _float_utilizations(self) -> dict[str, Normal]:
        """Return hint -> strain of the float model under it, where one was scored."""
        by_precision: dict[str, list[float]] = {}
        for trial in self._trials_with_score:
            if trial.plan.backend.lossy and not trial.plan.recipe.lossy:
                by_precision.setdefault(features.backend_precision(trial.plan.backend), []).append(
                    self._log_utilization(trial)
                )
        return {
            place: Normal(fmean(values), self._fitted.levels["strain noise"])
            for place, values in by_precision.items()
        }

    @cached_property
    def _trials_with_score(self) -> list[Trial]:
        return [
            t
            for t in self._search_timings
            if t.score is not None and self._view.budget is not None
        ]

    @cached_property
    def _answers(self) -> dict[tuple[tuple[Step, ...], str], float]:
        """Return a recipe's steps and the hint it ran under -> the least of its strains there."""
        lowest: dict[tuple[tuple[Step, ...], str], float] = {}
        for trial in self._trials_with_score:
            at = trial.plan.recipe.steps, features.backend_precision(trial.plan.backend)
            lowest[at] = min(self._log_utilization(trial), lowest.get(at, math.inf))
        return lowest

    @cached_property
    def _log_reach(self) -> float:
        """Return the strain up to which so many samples may show that a plan keeps the budget.

        It lies half way between the least strain that they cannot show and the next below it that
        they can, of the plans scored so far, or at half of it where there is none below; 0, the
        budget itself, where all that keep it may be accepted.
        """
        keep = [
            (self._log_utilization(trial), self._view.is_acceptable(trial))
            for trial in self._trials_with_score
            if trial.plan.lossy and trial.score and trial.score.verdict is not Verdict.FAILS
        ]
        refused = min((strain for strain, acceptable in keep if not acceptable), default=None)
        if refused is None:
            return 0.0
        below = [strain for strain, acceptable in keep if acceptable and strain < refused]
        return (refused + max(below, default=refused - 2 * math.log(2))) / 2

    def _log_utilization(self, trial: Trial) -> float:
        assert trial.score is not None
        assert self._view.budget is not None
        return log_budget_utilization(trial.score, self._view.budget)

    @cached_property
    def _accuracy_surrogate(self) -> Surrogate:
        """Return what is expected of recipes, by those scored where the backend adds little."""
        records = []
        for trial in self._trials_with_score:
            if not trial.plan.recipe.lossy or trial.misreading is not None:
                continue
            assert trial.score is not None
            assert self._view.budget is not None
            value = self._log_utilization(trial)
            noise = max(
                self._fitted.levels["strain noise"],
                log_utilization_sd(trial.score, self._view.budget),
            )
            if trial.plan.backend.lossy:
                value = _subtract_loss(value, self._estimate_float_model(trial.plan).mean)
                noise = max(noise, self._numbers["repeats"])
            records.append(
                Observation(features.accuracy_features(trial.plan.recipe), value, noise)
            )
        return Surrogate(self._priors.accuracy_prior, records)


def _subtract_loss(both: float, part: float) -> float:
    """Return the strain that makes `both` together with another, at least a third less."""
    if both - part < 0.2:
        return both - 1.0
    return both + math.log1p(-math.exp(part - both))
