"""The prior of what pairs and occasions do to a ratio, fitted to every machine measured so far.

    python -m benchmarks.noise.noise_prior [--check]

Reads the A/A records (``results/aa*.json``), the spreads of finalists told by decision 12
(``results/pair_spread.json``) and recorded repeats (``results/again*.json``, and ``rooms.json``,
which ran the main job twice). Every model, thread count and neighbour on a machine is one group of
pairs with a variance of its own. The empirical-Bayes fit of Smyth (2004,
doi:10.2202/1544-6115.1027, section 6.2) to those variances gives `PAIR_SD` and `PRIOR_DF` of
``measurement/timing/stats.py``, the repeats together `OCCASION_SD`; a test holds code and file
together.
Results: ``benchmarks/results/noise_prior.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from benchmarks.result_files import RESULTS, find_results
from ortune.measurement.timing import stats

WRITTEN = RESULTS / "noise_prior.json"
FITTED = ("PAIR_SD", "PRIOR_DF", "OCCASION_SD")
_FLOOR = 1e-3
"""Standard deviations below this are not told from the error of blocks."""
_RECORDED_DF = 6
"""Degrees of freedom of the intervals in records older than the pooled variance."""


@dataclass(frozen=True)
class Spread:
    """How far the pairs of one group differ beyond the error of their blocks.

    Attributes:
        df: Degrees of freedom that are left of it when the error is taken off.
        file: The record, and the CPU it was made on.
    """

    name: str
    sd: float
    df: float
    file: str
    machine: str


@dataclass(frozen=True)
class Repeats:
    """How far ratios differ between occasions, beyond the variance of their own pairs."""

    name: str
    variance: float
    count: int
    file: str
    machine: str


def fitted(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the fitted values, as the code holds them, with the groups behind each."""
    spreads = [*_aa(folder), *_told(folder)]
    sd, df = smyth([one.sd**2 for one in spreads], [one.df for one in spreads])
    repeats = [*_again(folder), *_twice(folder)]
    occasion = at_most([one.variance for one in repeats])
    return {
        "PAIR_SD": float(f"{sd:.2g}"),
        "PRIOR_DF": max(1.0, round(df, 1)),
        "OCCASION_SD": float(f"{math.sqrt(max(0.0, occasion)):.2g}"),
        "fit": {"pair sd": round(sd, 6), "prior df": round(df, 3), "occasion": round(occasion, 8)},
        "machines": sorted({*(one.machine for one in spreads), *(one.machine for one in repeats)}),
        "spreads of pairs": [asdict(one) for one in spreads],
        "repeats": [asdict(one) for one in repeats],
    }


def smyth(variances: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """Return the standard deviation and degrees of freedom of the prior of variances.

    The moments of log-variances are matched: their mean, and their variance less what sampling
    with so many degrees of freedom brings.
    """
    half = np.asarray(dfs, np.float64) / 2
    logs = np.log(variances) - [digamma(h) for h in half] + np.log(half)
    groups = len(logs)
    beyond = float(logs.var(ddof=1)) - float(np.mean([trigamma(h) for h in half]))
    least = 1 / groups**2
    found = _inverse_trigamma(max(beyond, least))
    middle = float(logs.mean()) + digamma(found) - math.log(found)
    return math.exp(middle / 2), 2 * found


def at_most(variances: Sequence[float]) -> float:
    """Return the 95 % upper limit of the variance that these are estimates of.

    Each is that of one occasion, chi-squared with a single degree of freedom, so that the largest
    of them grows with their number; what is below 0 counts as 0, which errs to the safe side.
    """
    return sum(max(0.0, one) for one in variances) / float(chi2.ppf(0.05, len(variances)))


def digamma(x: float) -> float:
    """Return the derivative of log Gamma (Abramowitz and Stegun 6.3.5 and 6.3.18)."""
    below = 0.0
    while x < 8:
        below, x = below - 1 / x, x + 1
    square = 1 / x**2
    return below + math.log(x) - 1 / (2 * x) - square / 12 + square**2 / 120 - square**3 / 252


def trigamma(x: float) -> float:
    """Return the second derivative of log Gamma (Abramowitz and Stegun 6.4.6 and 6.4.12)."""
    below = 0.0
    while x < 8:
        below, x = below + 1 / x**2, x + 1
    square = 1 / x**2
    tail = 1 / x + square / 2 + square / (6 * x) - square**2 / (30 * x) + square**3 / (42 * x)
    return below + tail


def _inverse_trigamma(value: float) -> float:
    low, high = 1e-3, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return low


def _spread(name: str, means: Any, errors: Any, file: Path, machine: str) -> Spread:
    """Take the error of blocks off the mean square of A/A pairs, whose mean is 0."""
    total, error = float(np.mean(np.square(means))), float(np.mean(np.square(errors)))
    own = max(total - error, _FLOOR**2)
    df = max(1.0, len(means) * min(1.0, own / total) ** 2)
    return Spread(name, round(math.sqrt(own), 6), round(df, 2), file.name, machine)


def _aa(folder: Path) -> Iterator[Spread]:
    """Read A/A records: pairs by cell with their blocks, or means and errors under a label."""
    for file in sorted(folder.rglob("aa*.json")):
        found = json.loads(file.read_text())
        cpu = _cpu(found)
        cells: dict[str, list[Any]] = {}
        for row in found.get("pairs", ()):
            model, threads, beside = row["cell"]
            name = f"{model}, {threads} threads{', beside a neighbour' if beside else ''}"
            cells.setdefault(name, []).append(np.array(row["blocks"]["A/A"]))
        for name, pairs in cells.items():
            means, errors = (
                map(stats.compute_trimmed_mean, pairs),
                map(stats.bootstrap_error, pairs),
            )
            yield _spread(name, list(means), list(errors), file, cpu)
        for label, value in found.items():
            if isinstance(value, Mapping) and "log-ratios of pairs and their errors" in value:
                table = np.array(value["log-ratios of pairs and their errors"])
                yield _spread(f"digit_cnn, {label}", table[:, 0], table[:, 1], file, cpu)


def _told(folder: Path) -> Iterator[Spread]:
    file = folder / "pair_spread.json"
    found = json.loads(file.read_text())
    for name, (sd, df) in found["finalists"].items():
        yield Spread(name, sd, df, file.name, _cpu(found))


def _again(folder: Path) -> Iterator[Repeats]:
    """Read repeats of one plan: single fresh pairs against what was stated of five."""
    for file in sorted(folder.rglob("again*.json")):
        found = json.loads(file.read_text())
        for name, case in found.items():
            if not isinstance(case, Mapping) or "stated ratio" not in case:
                continue
            value, low, high = case["stated ratio"]
            mean = _variance(low, high)
            squares = [math.log(one[-1] / value) ** 2 for one in case["ratios"]]
            own = mean * (1 + stats.PAIRS)
            variance = round(float(np.mean(squares)) - own, 8)
            yield Repeats(name, variance, len(squares), file.name, _cpu(found))


def _twice(folder: Path) -> Iterator[Repeats]:
    """Read the main job run twice: what rows differ by, less the variances of both means."""
    (file,) = find_results("rooms", folder)
    found = json.loads(file.read_text())
    for name, case in found["cases"].items():
        one, two = ({row["name"]: row for row in case[k]["rows"]} for k in ("before", "after"))
        beyond = []
        for row in sorted(one.keys() & two.keys() - {"original"}):
            a, b = one[row].get("ratio"), two[row].get("ratio")
            if not (a and b):
                continue
            own = sum(_variance(side["low"], side["high"]) for side in (a, b))
            beyond.append(math.log(a["value"] / b["value"]) ** 2 - own)
        yield Repeats(name, round(float(np.mean(beyond)), 8), len(beyond), file.name, _cpu(found))


def _variance(low: float, high: float) -> float:
    """Return the variance of the mean log-ratio that an old interval of five pairs holds."""
    half = math.log(high / low) / 2
    return float((half / stats.student_quantile(stats.CONFIDENCE, _RECORDED_DF)) ** 2)


def _cpu(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    return f"{machine['cpu']}, {machine['effective cpus']} CPUs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    found = fitted()
    if not asked.check:
        WRITTEN.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    other = [name for name in FITTED if found[name] != getattr(stats, name)]
    for name in other:
        print(f"measurement/timing/stats.py has {name} = {getattr(stats, name)}")
    raise SystemExit(bool(other))


if __name__ == "__main__":
    main()
