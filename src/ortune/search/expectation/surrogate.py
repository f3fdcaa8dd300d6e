"""A linear model with Gaussian priors, and what it expects of a plan never measured.

Bayesian linear regression (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 2.1), in the form that inverts a matrix of the size of the records: what is known is a sum
over named features, each with a prior of its own, so that records of one plan tell of those that
share its features.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = Mapping[str, float]  # name -> weight; what is not named weighs nothing


@dataclass(frozen=True)
class Normal:
    """What is expected of one number."""

    mean: float
    sd: float

    def probability_below(self, limit: float) -> float:
        """Return the chance that it lies below a limit."""
        if self.sd <= 0:
            return float(self.mean < limit)
        return _normal_cdf((limit - self.mean) / self.sd)

    def improvement_over(self, best: float) -> float:
        """Return by how much it is expected to fall below the best so far, 0 where it does not.

        The expected improvement of Jones, Schonlau and Welch (1998, doi:10.1023/A:1008306431147).
        """
        if self.sd <= 0:
            return max(0.0, best - self.mean)
        z = (best - self.mean) / self.sd
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return max(0.0, self.sd * (z * _normal_cdf(z) + density))


@dataclass(frozen=True)
class Observation:
    """One measured number."""

    features: Features
    value: float
    noise: float


class Surrogate:
    """What records tell of plans, given priors of the features.

    Args:
        prior: Feature -> what is expected of its part before anything was measured.
    """

    def __init__(self, prior: Callable[[str], Normal], records: Sequence[Observation]) -> None:
        self._prior = prior
        self._cached_priors: dict[str, Normal] = {}
        self._records = list(records)
        rows = [record.features for record in self._records]
        covariance = self._covariance(rows, rows)
        noise = np.diag([record.noise**2 for record in self._records])
        self._inverse = np.linalg.inv(covariance + noise) if rows else np.zeros((0, 0))
        residuals = [record.value - self._prior_mean(record.features) for record in self._records]
        self._pull = self._inverse @ np.array(residuals)

    def predict_plans(self, plans: Sequence[Features]) -> list[Normal]:
        """Return the posterior of each plan's number, without the noise of measuring it."""
        if not plans:
            return []
        across = self._covariance(plans, [record.features for record in self._records])
        means = across @ self._pull
        reductions = np.einsum("ij,jk,ik->i", across, self._inverse, across)
        predictions = []
        for plan, shift, reduction in zip(plans, means, reductions, strict=True):
            prior_variance = sum(
                (w * self._feature_prior(name).sd) ** 2 for name, w in plan.items()
            )
            sd = math.sqrt(max(0.0, prior_variance - float(reduction)))
            predictions.append(Normal(self._prior_mean(plan) + float(shift), sd))
        return predictions

    def _feature_prior(self, name: str) -> Normal:
        if name not in self._cached_priors:
            self._cached_priors[name] = self._prior(name)
        return self._cached_priors[name]

    def _prior_mean(self, plan: Features) -> float:
        return sum(weight * self._feature_prior(name).mean for name, weight in plan.items())

    def _covariance(self, first: Sequence[Features], second: Sequence[Features]) -> Floats:
        names = {name: at for at, name in enumerate(dict.fromkeys(n for p in second for n in p))}
        deviations = np.array([self._feature_prior(name).sd for name in names])
        covariance: Floats = (
            self._design_matrix(first, names, deviations)
            @ self._design_matrix(second, names, deviations).T
        )
        return covariance

    @staticmethod
    def _design_matrix(
        plans: Sequence[Features], names: Mapping[str, int], deviations: Floats
    ) -> Floats:
        matrix = np.zeros((len(plans), len(names)), np.float64)
        for row, plan in enumerate(plans):
            for name, weight in plan.items():
                if name in names:
                    matrix[row, names[name]] = weight
        return np.multiply(matrix, deviations)


def _normal_cdf(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2
