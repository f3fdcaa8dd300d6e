"""Replay the search on the tables: how far is what it finds from the best there is?

    python -m benchmarks.search.replay [--jobs 2] [NAME ...]

The search's own loop runs under a scripted clock on which plans cost what the tables say. Regret
is the latency of what was found over that of the table's best plan within the budget: of each
table, and the geometric mean. Of the trials that were abandoned part way those whose whole ratio
is within 2 % of the table's best were abandoned wrongly.

Each table is replayed twice: with the numbers of ``priors.json``, which are fitted to all tables,
and with those that `benchmarks.search.fit` fits to all tables but this one. Results, where all
tables are replayed: ``benchmarks/results/replay.json``. Seconds a table; it need not be idle:
nothing is timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from benchmarks.result_files import write_results
from benchmarks.search.fit import fit_without
from benchmarks.search.replayed import Result, replay
from benchmarks.search.table import Table, tables, true_ratio
from benchmarks.tables.search import replayed
from ortune.search.adaptive import Adaptive
from ortune.search.expectation import priors

RESULTS = Path(__file__).resolve().parents[1] / "results" / "replay.json"
FITS = ("all tables", "the other tables")
"""What the numbers of a replay are fitted to."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables; all there are")
    parser.add_argument("--seconds", default="30,60,180")
    parser.add_argument("--fitted-to", choices=FITS, action="append", help="both")
    parser.add_argument("--jobs", type=int, default=1, help="processes that replay")
    parser.add_argument("--changed-space", action="store_true", help="what a table lacks fails")
    given = parser.parse_args()
    seconds = [float(text) for text in given.seconds.split(",")]
    chosen = list(tables(given.names))
    with ProcessPoolExecutor(given.jobs) as pool:
        mapped = pool.map if given.jobs > 1 else map
        fits = given.fitted_to or FITS
        results = compare(chosen, seconds, fits, changed=given.changed_space, mapped=mapped)
    print(replayed(results))
    if not given.names and not given.fitted_to:
        write_results(RESULTS, results)


def compare(
    every: Sequence[Table],
    seconds: Sequence[float],
    fits: Sequence[str] = FITS[:1],
    *,
    changed: bool = False,
    mapped: Callable[..., Iterable[dict[float, Result]]] = map,
) -> dict[str, Any]:
    """Replay every table for every time limit, by every fit.

    Args:
        changed: See `replay`.
        mapped: As the built-in; a pool's spreads the replays over processes.
    """
    cases = list(product(fits, every))
    limits: dict[str, dict[str, dict[str, Result]]] = {}
    results = mapped(partial(_replay, seconds=tuple(seconds), changed=changed), cases)
    for (fit, table), by_limit in zip(cases, results, strict=True):
        for limit, result in by_limit.items():
            of_limit = limits.setdefault(fit, {}).setdefault(f"{limit:g}", {})
            of_limit[table.about.name] = result
    first = every[0].about
    return {
        "machine": dict(first.machine),
        "versions": dict(first.versions),
        "tables": {table.about.name: _about(table) for table in every},
        "fitted to": {
            fit: {"seconds": {limit: summary(results) for limit, results in by_limit.items()}}
            for fit, by_limit in limits.items()
        },
    }


def _replay(
    case: tuple[str, Table], *, seconds: tuple[float, ...], changed: bool
) -> dict[float, Result]:
    fit, table = case
    numbers = priors.load_fitted_numbers() if fit == FITS[0] else fit_without(table.about.name)
    with patch.object(priors, "load_fitted_numbers", lambda: numbers):
        return {limit: replay(table, Adaptive(), limit, changed=changed) for limit in seconds}


def summary(results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the geometric mean of the regrets, and each."""
    every = list(results.values())
    rounded = {
        name: {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(one).items()}
        for name, one in results.items()
    }
    abandoned, wrongly = (
        sum(counts) for counts in ([o.abandoned for o in every], [len(o.wrongly) for o in every])
    )
    return {
        "regret": geometric(one.regret for one in every),
        "worst": max((one.regret for one in every), default=math.nan),
        "wall over its limit": max((one.over for one in every), default=math.nan),
        "first plan after": max((o.first_s for o in every if o.first_s), default=None),
        "abandoned": abandoned,
        "wrongly abandoned": wrongly,
        "models": rounded,
    }


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    found = [math.log(value) for value in values]
    return math.exp(fmean(found)) if found else math.nan


def _about(table: Table) -> dict[str, Any]:
    return {
        "cpu": table.about.machine.get("cpu", ""),
        "space": table.about.space,
        "plans": len(table.rows),
        "best": str(table.best.plan),
        "ratio": round(true_ratio(table.best), 4),
    }


if __name__ == "__main__":
    main()
