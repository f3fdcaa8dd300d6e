"""A linear model with Gaussian priors, and what it expects of a plan never measured.

Bayesian linear regression (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 2.1), in the form that inverts a matrix of the size of the records: what is known is a sum
over named features, each with a prior of its own, so that records of one plan tell of those that
share its features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = Mapping[str, float]
"""Name -> weight; what is not named weighs nothing."""


@dataclass(frozen=True)
class Normal:
    """What is expected of one number."""

    mean: float
    sd: float

    def below(self, limit: float) -> float:
        """Return the chance that it lies below a limit."""
        if self.sd <= 0:
            return float(self.mean < limit)
        return _cumulative((limit - self.mean) / self.sd)

    def gain(self, best: float) -> float:
        """Return by how much it is expected to fall below the best so far, 0 where it does not.

        The expected improvement of Jones, Schonlau and Welch (1998, doi:10.1023/A:1008306431147).
        """
        if self.sd <= 0:
            return max(0.0, best - self.mean)
        z = (best - self.mean) / self.sd
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return max(0.0, self.sd * (z * _cumulative(z) + density))


@dataclass(frozen=True)
class Observed:
    """One measured number.

    Attributes:
        noise: Standard deviation of the measurement.
    """

    features: Features
    value: float
    noise: float


class Surrogate:
    """What records tell of plans, given priors of the features.

    Args:
        prior: Feature -> what is expected of its part before anything was measured.
    """

    def __init__(self, prior: Callable[[str], Normal], records: Sequence[Observed]) -> None:
        self._prior = prior
        self._known: dict[str, Normal] = {}
        self._records = list(records)
        rows = [one.features for one in self._records]
        covered = self._covariance(rows, rows)
        noise = np.diag([one.noise**2 for one in self._records])
        self._inverse = np.linalg.inv(covered + noise) if rows else np.zeros((0, 0))
        apart = [one.value - self._mean(one.features) for one in self._records]
        self._pull = self._inverse @ np.array(apart)

    def expect(self, plans: Sequence[Features]) -> list[Normal]:
        """Return the posterior of each plan's number, without the noise of measuring it."""
        if not plans:
            return []
        across = self._covariance(plans, [one.features for one in self._records])
        means = across @ self._pull
        taken = np.einsum("ij,jk,ik->i", across, self._inverse, across)
        found = []
        for plan, moved, known in zip(plans, means, taken, strict=True):
            own = sum((w * self._of(name).sd) ** 2 for name, w in plan.items())
            sd = math.sqrt(max(0.0, own - float(known)))
            found.append(Normal(self._mean(plan) + float(moved), sd))
        return found

    def _of(self, name: str) -> Normal:
        if name not in self._known:
            self._known[name] = self._prior(name)
        return self._known[name]

    def _mean(self, plan: Features) -> float:
        return sum(weight * self._of(name).mean for name, weight in plan.items())

    def _covariance(self, one: Sequence[Features], two: Sequence[Features]) -> Floats:
        names = {name: at for at, name in enumerate(dict.fromkeys(n for p in two for n in p))}
        deviations = np.array([self._of(name).sd for name in names])
        found: Floats = self._table(one, names, deviations) @ self._table(two, names, deviations).T
        return found

    @staticmethod
    def _table(plans: Sequence[Features], names: Mapping[str, int], deviations: Floats) -> Floats:
        found = np.zeros((len(plans), len(names)), np.float64)
        for row, plan in enumerate(plans):
            for name, weight in plan.items():
                if name in names:
                    found[row, names[name]] = weight
        return np.multiply(found, deviations)


def _cumulative(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2
