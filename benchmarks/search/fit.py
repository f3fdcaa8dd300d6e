"""Fit what a search expects before its first trial to the recorded tables.

    python -m benchmarks.search.fit

The prior of a feature (`ortune.search.expectation.features`) is a normal: an intercept, and for
some a slope on what physics says of it (`priors.Physics`). A table's own value of the feature
deviates from that by the feature's standard deviation. All of them are estimated together by
expectation maximization (empirical Bayes): intercepts are drawn to the mean of their kind, slopes
to 1, deviations to that usual for their kind, the more so the fewer tables have the feature.
Beside the numbers stands the error of each table's plans by the fit to all other tables.

Writes ``src/ortune/search/expectation/priors.json``, of which ``defaults`` and ``levels``, that no
table can tell, are kept. A minute or two; nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, product
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.costs import Paid, Spent, passes
from benchmarks.search.replayed import spelled_budget
from benchmarks.search.spaces import pretended, space_of
from benchmarks.search.table import Row, Table, cuts_of, spelled, tables, true_ratio
from ortune.core.budget import Budget
from ortune.core.trial import Pair, Status, Trial
from ortune.measurement.timing import stats
from ortune.search.expectation import priors
from ortune.search.expectation.expectations import (
    LEAST,
    MOST,
    log_budget_utilization,
    log_utilization_sd,
)
from ortune.search.expectation.features import (
    accuracy_features,
    backend_precision,
    latency_features,
    quantizer_names,
)
from ortune.search.expectation.priors import (
    FittedNumbers,
    Priors,
    compute_work_units,
    count_build_work,
)
from ortune.search.expectation.surrogate import Features, Normal
from ortune.search.policy import View

Floats = NDArray[np.float64]
PRIORS = Path(priors.__file__).with_name("priors.json")
ROUNDS = 15
"""Of expectation maximization; the likelihood moves by less than 1 % of a record after."""
USUAL = 3.0
"""Tables that the usual deviation of a kind of feature counts as, beside a feature's own."""
TAILS = 3.0
"""Degrees of freedom of deviations (Student's t): that a setting made one model 15 times as slow
says little of the next."""
OF_ONE = 0.01
"""Of what recipes have in common between tables: nothing, each is a table's own."""
SLOPE_SD = 0.3
"""Of slopes around 1."""
SHORT_S = 0.5
"""Seconds of building beside which errors count in seconds, and beyond which relatively."""
PLAN = "plan:"


@dataclass(frozen=True)
class Records:
    """Numbers of one table.

    Attributes:
        rows: Features of each with weights.
        values: What was measured.
        noise: Its standard deviation.
        physics: Feature -> what physics says of it for this model.
    """

    rows: list[Mapping[str, float]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    physics: dict[str, float] = field(default_factory=dict)

    def add(self, features: Mapping[str, float], value: float, noise: float) -> None:
        """Add one."""
        self.rows.append(features)
        self.values.append(value)
        self.noise.append(noise)


def view_of(table: Table) -> View:
    """Return what a search of a table knows before its first trial."""
    first, about = table.rows[0], table.about
    taken = SimpleNamespace(latency_ns=[Paid.of(first, first).run_ns[0]])
    original = cast(
        Trial,
        SimpleNamespace(
            measurement=taken, size=first.size, key="", part="search", neighbour_of="", ratio=None
        ),
    )
    with pretended(table):
        space = space_of(table)
    budget = Budget.parse(spelled_budget(table))
    return View(about.facts, space, [original], 1.0, 1.0, budget, by_operator=about.by_operator)


def timed(table: Table) -> Iterator[Row]:
    """Yield the rows that were timed, without the original's own."""
    for row in table.rows[1:]:
        if row.truth is not None and row.status is not Status.FAILED:
            yield row


def latencies(table: Table, noise: float) -> Records:
    """Return the log-ratios of a table's plans."""
    levels, known, found = priors.load_fitted_numbers().levels, Priors(view_of(table)), Records()
    for row in timed(table):
        value = min(math.log(levels["slowest"]), math.log(true_ratio(row)))
        slow = levels["noise of slow"] * max(0.0, value)
        features = latency_features(row.plan).items()
        found.add(
            {known.prior_name(name): weight for name, weight in features}, value, noise + slow
        )
    found.physics.update(
        {name: known.physical_effect(name) for features in found.rows for name in features}
    )
    return found


def strained(table: Table) -> Iterator[tuple[Row, float]]:
    """Yield the rows that were scored with their strain."""
    budget = Budget.parse(spelled_budget(table))
    for row in timed(table):
        if row.scores and row.plan.lossy:
            yield row, log_budget_utilization(row.scores[0], budget)


def strains(table: Table, noise: float) -> Records:
    """Return what recipes lose where the backend adds nothing, and what backends do alone."""
    budget, found = Budget.parse(spelled_budget(table)), Records()
    scale = 0.5 if budget.metric.decibels else 1.0
    for row, value in strained(table):
        if not row.plan.recipe.lossy:
            found.add({f"hint:{backend_precision(row.plan.backend)}": 1.0}, value, noise)
        elif not row.plan.backend.lossy:
            features = {
                name: weight * (scale if name.startswith("step:") else 1.0)
                for name, weight in accuracy_features(row.plan.recipe).items()
            }
            found.add(features, value, max(noise, log_utilization_sd(row.scores[0], budget)))
    return found


def numbers(some: Sequence[Table]) -> dict[str, float]:
    """Return how far like numbers lie apart: of one plan, and of one recipe."""
    block, pair = [], []
    for table in some:
        for row in table.rows[1:]:
            if len(row.pairs) > 1 and row.truth is not None:
                whole, *_ = row.timed()
                first = Pair(whole.blocks[:1])
                pair.append(math.log(stats.latency_ratio([whole]).value / row.truth))
                block.append(math.log(stats.latency_ratio([first]).value / row.truth))
    found = {"noise of a pair": _rms(pair), "noise of a block": _rms(block)}
    return found | _dying(some) | _answers(some)


def _dying(some: Sequence[Table]) -> dict[str, float]:
    """Return the chance that a plan runs, and where one of its kind has died before."""
    first, again = [], []
    for table in some:
        died: set[tuple[str, frozenset[str]]] = set()
        for row in table.rows[1:]:
            key = backend_precision(row.plan.backend), quantizer_names(row.plan.recipe)
            if row.status is not Status.UNCHANGED and row.died != "build":
                (again if key in died else first).append(not row.died)
            if row.died:
                died.add(key)
    return {"runs": _share(first), "runs again": _share(again)}


def _answers(some: Sequence[Table]) -> dict[str, float]:
    """Return how far strains of one recipe lie apart, under the same hint and another."""
    same, other = [], []
    for table in some:
        alike: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row, value in strained(table):
            if LEAST < value < MOST and row.plan.recipe.lossy:
                alike[row.plan.recipe.steps][backend_precision(row.plan.backend)].append(value)
        for hints in alike.values():
            same += [v - fmean(values) for values in hints.values() for v in values if values[1:]]
            means = [fmean(values) for values in hints.values()]
            other += [mean - fmean(means) for mean in means if means[1:]]
    return {"same answers": _rms(same), "repeats": _rms(other)}


def sizes(some: Sequence[Table]) -> tuple[dict[str, float], float]:
    """Return family -> bytes of files over the original's, and the deviation of its logarithm."""
    found: dict[str, list[float]] = defaultdict(list)
    for table in some:
        first = table.rows[0].size or 0
        for row in table.rows[1:]:
            names = quantizer_names(row.plan.recipe)
            if row.size and first and len(names) == 1:
                found[next(iter(names))].append(math.log(row.size / first))
    known = {name: logs for name, logs in found.items() if median(logs) < 0}
    apart = [log - median(logs) for logs in known.values() for log in logs]
    return {name: _round3(math.exp(median(logs))) for name, logs in known.items()}, _rms(apart)


def builds(some: Sequence[Table]) -> dict[str, dict[str, float]]:
    """Return work -> unit -> seconds, by what recipes took that were built anew."""
    names: dict[tuple[str, str], int] = {}
    rows: list[dict[tuple[str, str], float]] = []
    seconds: list[float] = []
    for table in some:
        first = table.rows[0]
        counted = compute_work_units(table.about.facts, Paid.of(first, first).run_ns[0] / 1e9)
        known = passes(table)
        for recipe in {row.plan.recipe.steps: row.plan.recipe for row in table.rows[1:]}.values():
            cuts = [table.cuts.get(spelled(recipe.steps[:at])) for at in cuts_of(recipe.steps)]
            paid = Spent()
            taken = sum(paid.cut(cut, known) for cut in cuts if cut is not None)
            if taken > 0 and all(cut is not None and not cut.error for cut in cuts):
                rows.append(
                    {
                        (kind, unit): n * of
                        for kind, n in count_build_work(recipe)
                        for unit, of in counted.items()
                    }
                )
                seconds.append(taken)
    for one in json.loads(PRIORS.read_text(encoding="utf-8"))["defaults"]["builds"]:
        rows.append({(k, u): of for k, (u, of) in product(one["work"], one["units"].items())})
        seconds.append(one["seconds"])
    for name in chain.from_iterable(rows):
        names.setdefault(name, len(names))
    design = np.zeros((len(rows), len(names)))
    for index, row in enumerate(rows):
        for name, weight in row.items():
            design[index, names[name]] = weight
    found: dict[str, dict[str, float]] = defaultdict(dict)
    taken, each = np.array(seconds), np.zeros(len(names))
    for _ in range(10):
        weight = 1 / (SHORT_S + (design @ each if each.any() else taken))
        each = not_negative(design * weight[:, None], taken * weight)
    for (kind, unit), one in zip(names, each, strict=True):
        if one > 1e-6:
            found[kind][unit] = float(f"{one:.3g}")
    return dict(found)


def not_negative(design: Floats, values: Floats, rounds: int = 300) -> Floats:
    """Return weights of columns, none below 0, for the least sum of squared errors."""
    scale = np.maximum(np.sqrt((design**2).sum(0)), 1e-12)
    square, target = (design / scale).T @ (design / scale), (design / scale).T @ values
    found = np.zeros(len(scale))
    for _ in range(rounds):
        for at in range(len(found)):
            found[at] = max(
                0.0, found[at] + (target[at] - square[at] @ found) / (square[at, at] + 1e-6)
            )
    return cast(Floats, found / scale)


def _rms(values: Iterable[float]) -> float:
    """Return the standard deviation around 0."""
    return _round3(math.sqrt(fmean([value**2 for value in values])))


def _share(some: Sequence[bool]) -> float:
    """Return a share, as if one more had gone either way."""
    return _round3((sum(some) + 1) / (len(some) + 2))


def kind_of(name: str) -> str:
    """Return the kind of a feature."""
    return name.partition(":")[0]


class Model:
    """Intercepts, slopes and tables' deviations as one Gaussian, given the spread of each."""

    def __init__(self, sets: Sequence[Records], apart: float) -> None:
        self._sets = sets
        self._names = sorted({n for one in sets for row in one.rows for n in row} - {""})
        self._names = [n for n in self._names if not n.startswith(PLAN)]
        self.kinds = sorted({kind_of(n) for n in self._names})
        self.at = {name: index for index, name in enumerate(self._names)}
        self._kind = np.array([self.kinds.index(kind_of(n)) for n in self._names])
        self._matrix()
        count, kinds = len(self._names), len(self.kinds)
        self.mean, self.apart = (
            np.zeros(kinds),
            np.array([OF_ONE if kind == "recipe" else apart for kind in self.kinds]),
        )
        self.sd, self.usual = np.full(count, apart), np.full(kinds, apart)
        self.plan_sd = 0.05
        self._weight, self._plain = np.ones(len(self._own_of)), np.ones(len(self._y))
        for _ in range(ROUNDS):
            self._round()

    def _matrix(self) -> None:
        count = len(self._names)
        rows = [(t, r, w) for t, one in enumerate(self._sets) for r, w in enumerate(one.rows)]
        own = [
            (t, n)
            for t, one in enumerate(self._sets)
            for n in sorted({n for w in one.rows for n in w})
            if n in self.at
        ]
        self._own_at = {key: index for index, key in enumerate(own)}
        self._own_of = np.array([self.at[name] for _, name in own])
        self._z = np.zeros((len(rows), count))
        self._x, self._w = np.zeros((len(rows), count)), np.zeros((len(rows), len(own)))
        for index, (t, _, weights) in enumerate(rows):
            for name, weight in weights.items():
                if name in self.at:
                    self._z[index, self.at[name]] = weight
                    self._x[index, self.at[name]] = weight * self._sets[t].physics.get(name, 0.0)
                    self._w[index, self._own_at[t, name]] = weight
        self._y = np.array([v for one in self._sets for v in one.values])
        self._noise = np.array([v for one in self._sets for v in one.noise])
        self._sloped = np.abs(self._x).max(0) > 0 if len(rows) else np.zeros(count, bool)

    def _round(self) -> None:
        """Estimate all by the spreads, then the spreads by these."""
        means = self.mean[self._kind]
        prior = np.concatenate(
            [
                self.apart[self._kind] ** 2,
                np.where(self._sloped, SLOPE_SD**2, 0),
                self.sd[self._own_of] ** 2 / self._weight,
            ]
        )
        design = np.hstack([self._z, self._x, self._w])
        alone = self.plan_sd**2 / self._plain
        spread_ = np.diag(alone + self._noise**2)
        covered = (design * prior) @ design.T + spread_
        inverse = np.linalg.inv(covered)
        rest = self._y - self._z @ means - self._x.sum(1)
        pull = inverse @ rest
        crossed = design * prior
        moved = crossed.T @ pull
        var = prior - (crossed * (inverse @ crossed)).sum(0)
        var = np.maximum(var, 0)
        count = len(self._names)
        self.intercept, self.intercept_var = means + moved[:count], var[:count]
        self.slope = 1 + moved[count : 2 * count]
        own, own_var = moved[2 * count :], var[2 * count :]
        square = own**2 + own_var
        self._weight = (TAILS + 1) / (TAILS + square / self.sd[self._own_of] ** 2)
        square = self._weight * square
        self.tables = np.bincount(self._own_of, minlength=count)
        for k in range(len(self.kinds)):
            mine = self._kind == k
            self.mean[k] = self.intercept[mine].mean() * mine.sum() / (mine.sum() + 1)
        total = np.bincount(self._own_of, square, minlength=count)
        for k in range(len(self.kinds)):
            mine = self._kind == k
            self.usual[k] = math.sqrt(np.median(total[mine] / self.tables[mine]))
        self.sd = np.sqrt((USUAL * self.usual[self._kind] ** 2 + total) / (USUAL + self.tables))
        faster = self._weight * (2 * np.minimum(own, 0) ** 2 + own_var)
        total = np.bincount(self._own_of, faster, minlength=count)
        self.faster = np.sqrt(
            (USUAL * self.usual[self._kind] ** 2 + total) / (USUAL + self.tables)
        )
        # The part of the plan alone: what its noise does not explain.
        share = alone / np.diag(spread_)
        left = np.diag(spread_) * pull
        kept = np.diag(spread_) * (1 - np.diag(spread_) * np.diag(inverse))
        plan = (share * left) ** 2 + share**2 * kept + alone * (1 - share)
        self._plain = (TAILS + 1) / (TAILS + plan / self.plan_sd**2)
        self.plan_sd = math.sqrt((self._plain * plan).mean())

    def priors(self) -> dict[str, Any]:
        """Return the priors of features, and of those of a kind that no table has."""
        found: dict[str, Any] = {}
        for k, kind in enumerate(self.kinds):
            known = self.intercept[self._kind == k]
            middle = float(np.median(known))
            sd = math.hypot(self.usual[k], 1.48 * np.median(np.abs(known - middle)))
            found[f"{kind}:"] = {"mean": _round3(middle), "sd": _round3(sd)}
        if self.plan_sd:
            found[PLAN] = {"mean": 0.0, "sd": _round3(self.plan_sd)}
        for name, index in self.at.items():
            if name.startswith("recipe:"):
                continue
            sd = math.sqrt(
                min(self.sd[index], self.faster[index]) ** 2 + self.intercept_var[index]
            )
            one: dict[str, Any] = {"mean": _round3(self.intercept[index]), "sd": _round3(sd)}
            if self._sloped[index]:
                one["slope"] = _round3(self.slope[index])
            found[name] = one | {"tables": int(self.tables[index])}
        return found


def fit(some: Sequence[Table]) -> dict[str, Any]:
    """Return all that tables tell."""
    known = numbers(some)
    latency = Model([latencies(one, known["noise of a pair"]) for one in some], apart=0.2)
    losses = [strains(one, priors.load_fitted_numbers().levels["strain noise"]) for one in some]
    strain_ = Model([one for one in losses if one.rows], apart=1.0)
    bytes_, known["size sd"] = sizes(some)
    return {
        "tables": [one.about.name for one in some],
        "latency": latency.priors(), "strain": strain_.priors(),
        "build": builds(some), "numbers": known, "sizes": bytes_,
    }  # fmt: skip


@cache
def fit_without(name: str) -> FittedNumbers:
    """Return the numbers fitted to all tables but one, with what no table tells."""
    data = json.loads(PRIORS.read_text(encoding="utf-8"))
    return FittedNumbers(data | {"fitted": fit([t for t in tables() if t.about.name != name])})


def error(table: Table, numbers: FittedNumbers) -> dict[str, float]:
    """Return how far a table's plans lie from what is expected before the first trial."""
    with patch.object(priors, "load_fitted_numbers", lambda: numbers):
        known, slowest = Priors(view_of(table)), math.log(numbers.levels["slowest"])
        apart = [
            min(slowest, math.log(true_ratio(row)))
            - min(slowest, _mean(known.latency_prior, latency_features(row.plan)))
            for row in timed(table)
        ]
        of_strain = [
            value - _mean(known.accuracy_prior, accuracy_features(row.plan.recipe))
            for row, value in strained(table)
            if row.plan.recipe.lossy and not row.plan.backend.lossy
        ]
    return {"latency": _rms(apart), "strain": _rms(of_strain) if of_strain else 0.0}


def _mean(prior: Callable[[str], Normal], features: Features) -> float:
    return sum(weight * prior(name).mean for name, weight in features.items())


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    every = list(tables())
    data = json.loads(PRIORS.read_text(encoding="utf-8"))
    data["fitted"] = fit(every)
    errors = {one.about.name: error(one, fit_without(one.about.name)) for one in every}
    data["fitted"]["error of each table by the others"] = errors
    for name, one in errors.items():
        print(f"{name}: log-ratio {one['latency']:.2f}, strain {one['strain']:.2f}")
    PRIORS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _round3(value: float) -> float:
    return round(float(value), 3)


if __name__ == "__main__":
    main()
