"""Replay policies on the tables: how far is what they find from the best there is?

    python -m benchmarks.search.replay --policy staged --seconds 30,60,180 [NAME ...]

The search's own loop runs under a scripted clock on which plans cost what the tables say. Regret
is the latency of what was found over that of the table's best plan within the budget: of each
table, and the geometric mean. Results, where all tables are replayed:
``benchmarks/results/search_replay.json``. Seconds a table; it need not be idle: nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.search.replayed import Result, replay
from benchmarks.search.table import Table, tables, true_ratio
from ortune.core.plugins.spelling import parse
from ortune.search.policy import Policy

RESULTS = Path(__file__).resolve().parents[1] / "results" / "search_replay.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables; all there are")
    parser.add_argument("--policy", action="append", help="staged; repeat it to compare")
    parser.add_argument("--seconds", default="30,60,180")
    parser.add_argument("--changed-space", action="store_true", help="what a table lacks fails")
    asked = parser.parse_args()
    seconds = [float(text) for text in asked.seconds.split(",")]
    every = list(tables(asked.names))
    if not every:
        parser.error("no tables yet: python -m benchmarks.search.record NAME")
    found = compared(every, asked.policy or ["staged"], seconds, changed=asked.changed_space)
    for policy, about in found["policies"].items():
        for limit, one in about["seconds"].items():
            print(f"{policy}, {limit} s: {one['regret']:.3f} (worst {one['worst']:.3f})")
    if not asked.names:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def compared(
    every: Sequence[Table],
    policies: Sequence[str],
    seconds: Sequence[float],
    *,
    changed: bool = False,
) -> dict[str, Any]:
    """Replay every policy on every table for every time limit."""
    found: dict[str, Any] = {"tables": {table.about.name: _about(table) for table in every}}
    found["policies"] = {}
    for text in policies:
        policy, limits = parse(Policy, text), {}
        for limit in seconds:
            results = {t.about.name: replay(t, policy, limit, changed=changed) for t in every}
            limits[f"{limit:g}"] = summary(results)
        found["policies"][text] = {"seconds": limits}
    return found


def summary(results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the geometric mean of the regrets, the worst, and each."""
    regrets = [one.regret for one in results.values()]
    rounded = {
        name: {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(one).items()}
        for name, one in results.items()
    }
    return {
        "regret": geometric(regrets),
        "worst": max(regrets, default=math.nan),
        "models": rounded,
    }


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    found = [math.log(value) for value in values]
    return math.exp(fmean(found)) if found else math.nan


def _about(table: Table) -> dict[str, Any]:
    return {
        "cpu": table.about.machine.get("cpu", ""),
        "versions": dict(table.about.versions),
        "space": table.about.space,
        "plans": len(table.rows),
        "best": str(table.best.plan),
        "ratio": round(true_ratio(table.best), 4),
    }


if __name__ == "__main__":
    main()
