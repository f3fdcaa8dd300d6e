"""What is expected of plans before the first trial: fitted numbers and physics of the model.

Physics: a share of the time that becomes so many times as fast (Amdahl's law), by operators and
instruction sets, and weights that are read from memory. What tables show beyond it is fitted
(`fitted`). Trying a plan costs seconds of building, loading, timing and scoring it.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

from ortune.core.facts import Facts
from ortune.core.hardware.cpus import list_native_units
from ortune.core.roles import PREPARES, Role, find_step_role
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan, Status, Trial
from ortune.search.expectation.features import (
    FLOAT_SHARE,
    backend_precision,
    inner_backend,
    list_settings,
    public_name,
)
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View


@dataclass(frozen=True)
class FeaturePrior:
    """What is expected of a feature: an intercept, and a slope on what physics says of it."""

    mean: float
    sd: float
    slope: float = 1.0


class FittedNumbers:
    """The numbers of the file.

    Attributes:
        build: Role of a step -> seconds that it takes: see `durations`.
        sizes: Quantizer -> bytes of the files over the original's.
        gains: Instruction set -> times as fast as floats, by its width.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        of_tables = data["fitted"]
        self.build: Mapping[str, Mapping[str, float]] = of_tables["build"]
        self.numbers: Mapping[str, float] = of_tables["numbers"]
        self.sizes: Mapping[str, float] = (
            _read_values(data["defaults"]["sizes"]) | of_tables["sizes"]
        )
        self.gains: Mapping[str, float] = _read_values(data["defaults"]["gains"])
        self.levels: Mapping[str, float] = _read_values(data["levels"])
        self._parts = {
            number: {
                name: FeaturePrior(prior["mean"], prior["sd"], prior.get("slope", 1.0))
                for name, prior in (data["defaults"][number] | of_tables[number]).items()
            }
            for number in ("latency", "strain")
        }

    def feature_prior(self, number: Literal["latency", "strain"], feature: str) -> FeaturePrior:
        """Return what is expected of a feature, or of its kind where no table has it.

        What is said of a kind's unknown members is wider than what its known ones have in common.
        Of the hint of an unknown backend its precision is known.
        """
        parts, kind = self._parts[number], feature.partition(":")[0]
        precision = f"{kind}:*/{feature.rpartition('/')[2]}"
        names = (feature, precision, f"{kind}:unknown", f"{kind}:", "")
        return next(parts[name] for name in names if name in parts)


def _read_values(section: Mapping[str, Any]) -> dict[str, float]:
    return {name: entry["value"] for name, entry in section.items()}


@lru_cache(1)
def load_fitted_numbers() -> FittedNumbers:
    """Read the package's file, once."""
    path = files("ortune.search.expectation") / "priors.json"
    return FittedNumbers(json.loads(path.read_text(encoding="utf-8")))


LAYERS = {
    "conv": ("Conv", "ConvTranspose"),
    "product": ("MatMul", "Gemm", "Attention", "MultiHeadAttention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
}
_GATES = 6
"""Products that a recurrent layer counts as, where no profile tells its share of the time."""
_USUAL = 4.0  # settings that what the tables tell of them counts as, beside those of the run
_PACKED = {"int8-weights": 8, "int4-weights": 4}
"""Bits of packed weights, that are read from memory in place of 32."""


class Priors:
    """What is expected of features before the first trial."""

    def __init__(self, view: View) -> None:
        self._fitted = load_fitted_numbers()
        targets = view.space.targets
        self._by_power = 0.5 if view.budget and view.budget.metric.decibels else 1.0
        self._share = _time_shares(view)
        self._reads = _weight_read_share(view, self._fitted.levels["bytes per second"])
        self._units = list_native_units(
            item for t in targets for item in t.capabilities.instruction_sets
        )
        self._rules = {public_name(rule) for target in targets for rule in target.rules}
        self._splits = {f"threads={threads}" for target in targets for threads in target.splits}
        self._variants = {
            name
            for target in targets
            for item in target.list_variants(view.facts, view.space.workload)
            for name in set(list_settings(item)) - set(list_settings(target.backend))
        }
        self._single = all(getattr(t.backend, "threads", 0) == 1 for t in targets)
        self._settings_scale = self._estimate_settings_scale(view)

    def latency_prior(self, feature: str) -> Normal:
        """Return the prior of a part of the log-ratio."""
        name = self.prior_name(feature)
        part = self._fitted.feature_prior("latency", name)
        sd = part.sd * (self._settings_scale if _is_plain_setting(name) else 1.0)
        return Normal(part.mean + part.slope * self.physical_effect(feature), sd)

    def accuracy_prior(self, feature: str) -> Normal:
        """Return the prior of a part of a recipe's strain.

        Steps of the kit take power out of the error; decibels are of its amplitude, half of that.
        """
        part = self._fitted.feature_prior("strain", feature)
        scale = self._by_power if feature.startswith("step:") else 1.0
        return Normal(scale * part.mean, scale * part.sd)

    def _estimate_settings_scale(self, view: View) -> float:
        """Return how far settings move the latency in this run, as a share of what is usual.

        Settings are one family: where those that were tried moved little, the others will too. The
        squares of what each moved, over what was expected of it, are pooled with a prior of
        `_USUAL` degrees of freedom, as variances are (Smyth 2004, doi:10.2202/1544-6115.1027).
        """
        by_key = {trial.key: trial for trial in view.trials if trial.part == "search"}
        squares, count = 0.0, 0
        noise = math.sqrt(2) * self._fitted.numbers["noise of a pair"]
        for trial in view.trials:
            leader = by_key.get(trial.neighbour_of)
            if leader is None or leader.ratio is None or trial.ratio is None:
                continue
            changed = set(list_settings(trial.plan.backend)) ^ set(
                list_settings(leader.plan.backend)
            )
            names = [self.prior_name(f"set:{name}") for name in changed]
            deviations = [
                self._fitted.feature_prior("latency", name).sd
                for name in names
                if _is_plain_setting(name)
            ]
            if deviations:
                usual = math.hypot(noise, *deviations)
                moved = math.log(trial.ratio.value / leader.ratio.value)
                squares, count = squares + (moved / usual) ** 2, count + 1
        return min(1.0, math.sqrt((_USUAL + squares) / (_USUAL + count)))

    def physical_effect(self, feature: str) -> float:
        """Return what a feature brings where all is as it should be, 0 where nothing is known."""
        kind, _, name = feature.partition(":")
        match kind:
            case "hint":
                precision = name.partition("/")[2]
                gains = self._fitted.gains
                units = (f"{precision}-amx", f"{precision}-avx512")
                gain = next(
                    (gains[unit] for unit in units if unit in self._units and unit in gains), 1.0
                )
                return _amdahl_log_ratio(FLOAT_SHARE[Role.WEIGHTS], gain)
            case "family":
                share = self._share
                match name:
                    case "int8-static":
                        return _amdahl_log_ratio(share["conv"] + share["product"], self._gain)
                    case "int8-dynamic":
                        return _amdahl_log_ratio(share["product"] + share["recurrent"], self._gain)
                    case "int8-weights" | "int4-weights":
                        return self._compute_read_gain(name)
                return 0.0
            case "family@kind" if name.partition("@")[0] in _PACKED:
                return self._reads
            case "family@hint":
                return self._precision_interaction(*name.split("@"))
            case "behind":
                return _amdahl_log_ratio(self._share["recurrent"], self._gain)
        return 0.0

    def prior_name(self, feature: str) -> str:
        """Return the name under which a feature's numbers stand.

        A setting by which the space makes a variant for this model is there for a reason.
        """
        kind, _, name = feature.partition(":")
        if kind == "set":
            if name.partition(".")[2] in self._splits:
                return "set:split"
            if name in self._variants:
                return f"variant:{name}"
            return feature if self._single else "set:threaded"
        return "rule:own" if kind == "rule" and name in self._rules else feature

    @property
    def _gain(self) -> float:
        """How many times as fast products of 8-bit integers are as those of floats."""
        gains = self._fitted.gains
        return next(
            (gains[unit] for unit in ("int8-amx", "int8-vnni") if unit in self._units),
            gains["int8"],
        )

    def _compute_read_gain(self, family: str, computing: float = 1.0) -> float:
        """Return the log-ratio of packed weights where the rest takes that share of its time."""
        return math.log(self._reads * _PACKED[family] / 32 + (1 - self._reads) * computing)

    def _precision_interaction(self, family: str, place: str) -> float:
        """Return what is lost where packed weights meet a hint: it is no help in reading them."""
        if family not in _PACKED:
            return 0.0
        hint = FLOAT_SHARE[Role.WEIGHTS] * self.physical_effect(f"hint:{place}")
        return (
            self._compute_read_gain(family, math.exp(hint))
            - hint
            - self._compute_read_gain(family)
        )


def _is_plain_setting(name: str) -> bool:
    """Whether a prior is that of a setting which is tried for its own sake."""
    return name.startswith("set:") and name != "set:split"


def _time_shares(view: View) -> dict[str, float]:
    """Return kind of layer -> its share of the time: measured, or by how many layers there are."""
    if view.by_operator:
        return {
            kind: sum(view.by_operator.get(op, 0.0) for op in ops) for kind, ops in LAYERS.items()
        }
    counts = {
        kind: (_GATES if kind == "recurrent" else 1) * sum(view.facts.ops.get(op, 0) for op in ops)
        for kind, ops in LAYERS.items()
    }
    share = load_fitted_numbers().levels["share of layers"] / max(1, sum(counts.values()))
    return {kind: share * count for kind, count in counts.items()}


def _weight_read_share(view: View, per_s: float) -> float:
    """Return the share of the original's time that reading its weights from memory takes."""
    first = view.trials[0].measurement
    if first is None:
        return 0.0
    run_s = median(first.latency_ns) / 1e9
    read = view.facts.weight_bytes - view.facts.table_bytes
    return min(1.0, read / per_s / run_s)


def _amdahl_log_ratio(share: float, gain: float) -> float:
    """Return the log-ratio where a share of the time is so many times as fast (Amdahl's law)."""
    return math.log(1 - share + share / gain)


KEPT = "clean"  # work of a recipe's transforms
_SHORT_S = 0.1  # seconds of building below which the clock says nothing of the pace
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
        build = load_fitted_numbers().build
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
