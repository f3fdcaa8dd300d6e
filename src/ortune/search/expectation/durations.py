"""What trying a plan will cost: seconds of building, loading, timing and scoring it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from statistics import fmean, median
from typing import TypeAlias

from ortune.core.facts import Facts
from ortune.core.roles import PREPARES, Role, find_step_role
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan, Status, Trial
from ortune.search.expectation import priors
from ortune.search.expectation.features import backend_precision, inner_backend
from ortune.search.expectation.priors import LAYERS
from ortune.search.policy import View

KEPT = "clean"
"""Work of a recipe's transforms."""
_SHORT_S = 0.1
"""Seconds of building below which the clock says nothing of the pace."""
_Work: TypeAlias = tuple[frozenset[str], tuple[tuple[str, int], ...]]


def run_s(trials: Sequence[Trial]) -> float:
    """Return the seconds of a run of the original, the first of the trials; 0 if not known."""
    first = trials[0].measurement if trials else None
    return median(first.latency_ns) / 1e9 if first is not None and first.latency_ns else 0.0


def list_timed_trials(view: View) -> list[Trial]:
    """Return the search's trials that were timed, the original's own apart."""
    trials = (t for t in view.trials if t.part == "search" and t.stage != "baseline")
    return [t for t in trials if t.ratio is not None and math.isfinite(t.ratio.value)]


@lru_cache(4096)
def count_build_work(recipe: Recipe) -> tuple[tuple[str, int], ...]:
    """Return what building a recipe is made of: role or name of a step -> how many there are.

    ``inputs`` are steps that ask for samples though their role does not tell: they round or choose
    by products of their inputs. Floats of 16 bits look at ranges alone.
    """
    counts = Counter({KEPT: 1})
    for outer in recipe.steps:
        step = outer.inner if isinstance(outer, Quantizer) else outer
        place = find_step_role(step)
        if isinstance(step, Quantizer) or place in PREPARES:
            counts[place.name.lower() if place not in (None, Role.HALVES) else "other"] += 1
            needs = place in PREPARES or place in (Role.STATIC, Role.HALVES)
            counts["inputs"] += isinstance(step, Quantizer) and step.calibrates and not needs
    return tuple(sorted((+counts).items()))


def compute_work_units(facts: Facts, run_s: float) -> dict[str, float]:
    """Return by what work is counted: itself, megabytes of weights, runs of the original, and
    products of all weights with the inputs of their layers, in billions, layers taken for square.
    """
    layers = max(1, sum(facts.ops.get(op, 0) for ops in LAYERS.values() for op in ops))
    weights = max(0, facts.weight_bytes - facts.table_bytes) / 4
    squares = weights * math.sqrt(weights / layers) / 1e9
    return {"each": 1.0, "MB": facts.weight_bytes / 1e6, "runs": run_s, "products": squares}


class Durations:
    """What plans take to try, by all trials of a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def estimate_trial_s(self, plan: Plan) -> float:
        """Return what building, loading, timing and scoring a plan will take."""
        return self._build_s(plan.recipe) + self.running_s(plan)

    def building_s(self, recipe: Recipe) -> float:
        """Return what building a recipe anew takes, by what it or those like it took."""
        built = self._builds.get(recipe.steps)
        return self._build_s(recipe) if built is None else built[1]

    def running_s(self, plan: Plan) -> float:
        """Return what loading, timing and scoring a plan will take: the mean of trials that ran
        alike, by hint, then by kind, then of all."""
        place, kind = backend_precision(plan.backend), inner_backend(plan.backend).name()
        means = (self._ran_s.get(key) for key in (place, f"{kind}:", ""))
        mean_s = next((seconds for seconds in means if seconds is not None), None)
        return self._view.trials[0].seconds if mean_s is None else mean_s

    def _build_s(self, recipe: Recipe) -> float:
        """Return what the same steps took, or what their work takes at the pace of the others."""
        if not recipe.steps or recipe.steps in self._builds:
            return 0.0
        similar_s = self._builds_by_work.get(_work_key(recipe))
        return self._pace * self._usual_s(recipe) if similar_s is None else similar_s

    def _usual_s(self, recipe: Recipe) -> float:
        """Return what the work of a recipe takes by the tables."""
        build = priors.load_fitted_numbers().build
        return sum(
            count * sum(self._units[unit] * seconds for unit, seconds in build[kind].items())
            for kind, count in count_build_work(recipe)
            if kind in build
        )

    @cached_property
    def _units(self) -> dict[str, float]:
        return compute_work_units(self._view.facts, run_s(self._view.trials))

    @cached_property
    def _pace(self) -> float:
        """Return how much longer than usual building takes here, 1 counted as one recipe more."""
        logs = [math.log(max(s, _SHORT_S) / self._usual_s(r)) for r, s in self._builds.values()]
        return math.exp(sum(logs) / (len(logs) + 1))

    @cached_property
    def _builds_by_work(self) -> dict[_Work, float]:
        """Return quantizers and their work -> what recipes of these took, at least: what took
        longer than the time that there was counts too."""
        by_work: dict[_Work, list[float]] = {}
        trials = (*self._view.trials, *self._view.former)
        died = (t for t in trials if t.status is Status.FAILED and not t.edits)
        longer = [
            (t.plan.recipe, t.building)
            for t in died
            if t.building > self._pace * self._usual_s(t.plan.recipe)
        ]
        for recipe, seconds in (*self._builds.values(), *longer):
            by_work.setdefault(_work_key(recipe), []).append(seconds)
        return {alike: fmean(seconds) for alike, seconds in by_work.items()}

    @cached_property
    def _builds(self) -> dict[tuple[Step, ...], tuple[Recipe, float]]:
        """Return steps -> their recipe, and the seconds that they took."""
        builds: dict[tuple[Step, ...], tuple[Recipe, float]] = {}
        for trial in self._view.trials:
            if trial.part == "search" and trial.edits:
                recipe = trial.plan.recipe
                previous = builds.get(recipe.steps)
                builds[recipe.steps] = (
                    recipe,
                    max(trial.building, previous[1] if previous else 0.0),
                )
        return builds

    @cached_property
    def _ran_s(self) -> dict[str, float]:
        """Return hint, kind of backend and colon, or nothing -> mean seconds without building."""
        by_place: dict[str, list[float]] = {}
        for trial in list_timed_trials(self._view):
            if trial.seconds and not trial.stopped:
                backend, seconds = trial.plan.backend, trial.seconds - trial.building
                for key in (backend_precision(backend), f"{inner_backend(backend).name()}:", ""):
                    by_place.setdefault(key, []).append(seconds)
        return {key: fmean(seconds) for key, seconds in by_place.items()}


@lru_cache(4096)
def _work_key(recipe: Recipe) -> _Work:
    names = frozenset(step.inner.name() for step in recipe.steps if isinstance(step, Quantizer))
    return names, count_build_work(recipe)
