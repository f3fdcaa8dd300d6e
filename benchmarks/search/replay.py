"""Replay policies on the tables: how far is what they find from the best there is?

    python -m benchmarks.search.replay --policy staged --policy adaptive [--left-out] [NAME ...]

The search's own loop runs under a scripted clock on which plans cost what the tables say. Regret
is the latency of what was found over that of the table's best plan within the budget: of each
table, and the geometric mean. Of the trials that were abandoned part way those whose whole ratio
is within 2 % of the table's best were abandoned wrongly.

Tables named in ``benchmarks/search/left_out.json`` are replayed with ``--left-out`` alone: no
policy is tuned on them. Results, where all tables are replayed, these too:
``benchmarks/results/replay.json``. Seconds a table; it need not be idle: nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.result_files import write_results
from benchmarks.search.replayed import Result, replay
from benchmarks.search.table import Table, tables, true_ratio
from benchmarks.tables.search import replayed
from ortune.core.plugins.spelling import parse
from ortune.search.policy import Policy

RESULTS = Path(__file__).resolve().parents[1] / "results" / "replay.json"
LEFT_OUT: tuple[str, ...] = tuple(
    json.loads(Path(__file__).with_name("left_out.json").read_text())
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables; all there are")
    parser.add_argument("--policy", action="append", help="staged; repeat it to compare")
    parser.add_argument("--seconds", default="30,60,180")
    parser.add_argument("--left-out", action="store_true", help="those left out of tuning too")
    parser.add_argument("--jobs", type=int, default=1, help="processes that replay")
    parser.add_argument("--changed-space", action="store_true", help="what a table lacks fails")
    asked = parser.parse_args()
    seconds = [float(text) for text in asked.seconds.split(",")]
    wanted = [t for t in tables(asked.names) if asked.left_out or t.about.name not in LEFT_OUT]
    if not wanted:
        parser.error("no such tables yet: python -m benchmarks.search.record NAME")
    policies = asked.policy or ["staged"]
    with ProcessPoolExecutor(asked.jobs) as pool:
        mapped = pool.map if asked.jobs > 1 else map
        found = compared(wanted, policies, seconds, changed=asked.changed_space, mapped=mapped)
    print(replayed(found))
    if asked.left_out and not asked.names:
        write_results(RESULTS, found)


def compared(
    every: Sequence[Table],
    policies: Sequence[str],
    seconds: Sequence[float],
    *,
    changed: bool = False,
    mapped: Callable[..., Iterable[Result]] = map,
) -> dict[str, Any]:
    """Replay every policy on every table for every time limit.

    Args:
        changed: See `replay`.
        mapped: As the built-in; a pool's spreads the replays over processes.
    """
    cases = list(product(policies, seconds, every))
    one = partial(_one, changed=changed)
    limits: dict[str, dict[str, dict[str, Result]]] = {}
    for (policy, limit, table), result in zip(cases, mapped(one, cases), strict=True):
        of_policy = limits.setdefault(policy, {})
        of_policy.setdefault(f"{limit:g}", {})[table.about.name] = result
    first = every[0].about
    return {
        "machine": dict(first.machine),
        "versions": dict(first.versions),
        "tables": {table.about.name: _about(table) for table in every},
        "policies": {
            policy: {"seconds": {limit: summary(found) for limit, found in some.items()}}
            for policy, some in limits.items()
        },
    }


def _one(case: tuple[str, float, Table], *, changed: bool) -> Result:
    policy, limit, table = case
    return replay(table, parse(Policy, policy), limit, changed=changed)


def summary(results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the geometric mean of the regrets, all and of what was left out, and each."""
    every = list(results.values())
    left_out = [one.regret for name, one in results.items() if name in LEFT_OUT]
    rounded = {
        name: {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(one).items()}
        for name, one in results.items()
    }
    abandoned, wrongly = (
        sum(counts) for counts in ([o.abandoned for o in every], [len(o.wrongly) for o in every])
    )
    return {
        "regret": geometric(one.regret for one in every),
        "regret of left out": geometric(left_out) if left_out else None,
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
        "left out": table.about.name in LEFT_OUT,
        "space": table.about.space,
        "plans": len(table.rows),
        "best": str(table.best.plan),
        "ratio": round(true_ratio(table.best), 4),
    }


if __name__ == "__main__":
    main()
