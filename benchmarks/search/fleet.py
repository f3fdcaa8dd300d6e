"""What builders and devices bring, on paper: replays of the tables with nodes that build ahead.

    python -m benchmarks.search.fleet [--jobs 2] [--seconds 180]

Each table is searched by the product's own loop under a scripted clock, alone and with 1 to 64
CPUs elsewhere that build what is likely to come next. A build, a trial and a score take what the
table says; an order and the way back of a build take `TASK_S`, as measured on one machine. With
`LOST` a build in ten is lost with its node when half made.

Devices time one plan at a time, whatever builds: k of a kind search k models at once, so that a
fleet's hours follow from a search's. Results: ``benchmarks/results/fleet.json``. No machine need
be idle: nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.result_files import write_results
from benchmarks.search.replay import geometric
from benchmarks.search.replayed import Result, replay
from benchmarks.search.simulated import Builders
from benchmarks.search.table import tables
from ortune.search.adaptive import Adaptive

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fleet.json"
BUILDERS = (0, 1, 2, 4, 8, 16, 64)
DEVICES = (1, 2, 4, 8)
TASK_S = 0.15
"""Half of 0.28 s, which a build of 2 MB whose ranges were known took from order to arrival."""
LOST = 10
MODELS, KINDS = 1000, 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="of each search")
    parser.add_argument("--jobs", type=int, default=1, help="processes that replay")
    chosen = parser.parse_args()
    names = [table.about.name for table in tables(())]
    cases = [(count, 0) for count in BUILDERS] + [(BUILDERS[3], LOST)]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        rows = [
            summarize(
                count, lost, list(pool.map(partial(search, count, lost, chosen.seconds), names))
            )
            for count, lost in cases
        ]
    results = {"seconds": chosen.seconds, "task_s": TASK_S, "tables": names, "rows": rows}
    for row in rows:
        print(row)
    write_results(RESULTS, results | {"fleet": estimate_fleet(rows, chosen.seconds)})


def search(count: int, lost: int, seconds: float, name: str) -> Result:
    """Search a table with so many builders, one build in `lost` being lost."""
    (table,) = tables([name])

    def make_builders(*about: Any) -> Builders:
        return Builders(*about, count, task_s=TASK_S, lost=lost)

    make = make_builders if count else None
    return replay(table, Adaptive(), seconds, changed=True, make_builders=make)


def summarize(count: int, lost: int, results: Sequence[Result]) -> dict[str, Any]:
    """Return what a number of builders brings over all tables."""
    reached = [result.near_s for result in results if result.near_s is not None]
    return {
        "builders": count,
        "lost": lost,
        "regret": geometric(result.regret for result in results),
        "tried": fmean(result.tried for result in results),
        "reached": len(reached),
        "near_s": median(reached) if reached else None,
        "building": fmean(result.building_s / result.wall for result in results),
    }


def estimate_fleet(rows: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the hours of a fleet, whose devices of each kind are what it waits for.

    Args:
        seconds: Of each search.
    """
    near_s = min(row["near_s"] for row in rows)
    hours = {
        count: {"whole": MODELS * seconds / count / 3600, "near": MODELS * near_s / count / 3600}
        for count in DEVICES
    }
    return {"models": MODELS, "kinds": KINDS, "hours": hours}


if __name__ == "__main__":
    main()
