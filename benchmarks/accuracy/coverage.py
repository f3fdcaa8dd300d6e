"""How often what is outside a budget is called proved or handed out, and what is inside.

    python -m benchmarks.accuracy.coverage [--draws 2000] [--jobs 1] [--only share ...] [--fresh]

Every cell draws populations of records (`populations.py`) and asks `judge`: those just outside the
budget may be called proved in 5 % of the draws, and an exact binomial test, Bonferroni over the
cells, says whether more were; figures without a test must never be. The choice among 30 plans goes
through the whole selection: the search's samples throw out and choose, the final ones prove, the
error is divided by the finalists. Honest populations give the power.
What a search hands out is proved or likely (`acceptance.py`): where every plan is outside, 20 % of
the searches may hand one out. Parts that are not drawn keep their rows. Cells are kept in
``build/coverage.jsonl`` as they end. No quiet machine is needed. Results:
``benchmarks/results/coverage.json``."""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import acceptance
from benchmarks.accuracy.coverage_cells import Population, honest, never, outside
from benchmarks.accuracy.selection import SELECTIONS, chosen
from benchmarks.speed.fresh import Kept
from ortune.core.budget import Budget
from ortune.core.trial import LIKELY_ERROR, Verdict
from ortune.core.wording import format_count
from ortune.measurement.accuracy import ERROR, judge_accuracy

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "coverage.json"
KEPT = ROOT / "build" / "coverage.jsonl"
HANDED_OUT = ERROR + LIKELY_ERROR
"""Of searches whose plans are all outside, in which one of them may be handed out."""
COUNTS = (4, 8, 20, 59, 100, 200, 299, 400, 1000, 2000)
POWER_COUNTS = (20, 59, 100, 200, 299, 400, 1000, 2000)
DRAWS = 2000
POWER_DRAWS = 400
NEVER_DRAWS = 20

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each cell")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    parser.add_argument(
        "--trust-kept", action="store_true", help="count cells of code that has changed since"
    )
    asked = parser.parse_args()
    kept = Kept(asked.kept, fresh=asked.fresh)
    rules = judged_by()
    done = {_key(row) for row in kept.rows() if asked.trust_kept or row["rules"] == rules}
    tasks = [
        (part, index, count, asked.draws) for part in asked.only for index, count in cells(part)
    ]
    left = [task for task in tasks if (task[0], name(*task[:2]), task[2]) not in done]
    print(f"{len(left)} of {len(tasks)} cells to draw", flush=True)
    began = time.monotonic()
    with get_context("spawn").Pool(asked.jobs) as pool:
        for at, row in enumerate(pool.imap_unordered(_cell, left), 1):
            kept.add(row | {"rules": rules})
            if at % 10 == 0 or at == len(left):
                share = (time.monotonic() - began) / at
                print(
                    f"{at} of {len(left)}; {share * (len(left) - at) / 60:.0f} min left",
                    flush=True,
                )
    rows = [row for row in kept.rows() if asked.trust_kept or row["rules"] == rules]
    if asked.out.exists():
        rows += [
            row
            for row in json.loads(asked.out.read_text())["rows"]
            if row["part"] not in asked.only
        ]
    asked.out.write_text(json.dumps(summary(rows), indent=1) + "\n")
    print(told(json.loads(asked.out.read_text())))


def judged_by() -> str:
    """Return a digest of the code that judges: cells of other rules do not count."""
    from ortune import measurement

    home = Path(measurement.__path__[0])
    tests = sorted((home / "statistics").glob("*.py"))
    paths = [home / "accuracy.py", home / "evidence.py", *tests]
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["part"], row["name"], row["n"]


def cells(part: str) -> list[tuple[int, int]]:
    """Return the cells of a part: which population, how many samples; large ones first."""
    if part == "selection":
        return [(index, one.count) for index, one in enumerate(SELECTIONS)]
    if part == "handed out":
        return [(i, n) for n in reversed(acceptance.COUNTS) for i in range(len(PARTS[part]()))]
    counts = {"power": POWER_COUNTS, "never": (59, 2000)}.get(part, COUNTS)
    return [(i, n) for n in reversed(counts) for i in range(len(PARTS[part]()))]


def name(part: str, index: int) -> str:
    """Return what a cell's row is called."""
    if part == "selection":
        return SELECTIONS[index].name
    if part == "handed out":
        case, plans = PARTS[part]()[index]
        return f"{case.name}, {format_count(plans, 'plan')}"
    one = PARTS[part]()[index]
    return f"{one.kind}: {one.name}"


def _of(kind: str) -> Callable[[], list[Population]]:
    return lambda: [one for one in outside() if one.kind == kind]


PARTS: Mapping[str, Callable[[], list[Any]]] = {
    "share": _of("share"),
    "right": _of("right"),
    "mean": _of("mean"),
    "never": never,
    "selection": lambda: list(SELECTIONS),
    "power": honest,
    "handed out": lambda: [
        (case, plans) for case in acceptance.list_cases() for plans in acceptance.PLANS
    ],
}


def _cell(task: tuple[str, int, int, int]) -> Row:
    """Draw one cell and count."""
    part, index, n, draws = task
    began, called = time.monotonic(), name(part, index)
    rng = np.random.default_rng([zlib.crc32(f"{part} {called}".encode()), n])
    row: Row = {"part": part, "name": called, "n": n}
    if part == "selection":
        row |= chosen(SELECTIONS[index], rng, max(1, draws // 4))
    elif part == "handed out":
        case, plans = PARTS[part]()[index]
        row |= acceptance.hand_out(case, rng, n, plans, max(1, draws // 5))
    else:
        row |= _judged(PARTS[part]()[index], part, rng, n, draws)
    return row | {"seconds": round(time.monotonic() - began, 2)}


def _judged(one: Population, part: str, rng: np.random.Generator, n: int, draws: int) -> Row:
    draws = min(draws, {"never": NEVER_DRAWS, "power": POWER_DRAWS}.get(part, draws))
    budget = Budget.parse(one.budget)
    hits = 0
    for turn in range(draws):
        candidate, baseline, groups = one.draw(rng, n)
        found = judge_accuracy(budget, candidate, baseline, groups, seed=turn)
        hits += found.verdict is Verdict.PROVED
    return {"budget": one.budget, "draws": draws, "proved": hits}


def summary(rows: Sequence[Row]) -> Row:
    """Return the cells with their tests, and what they say together."""
    tested = [row for row in rows if row["part"] in ("share", "right", "mean", "selection")]
    strict = ERROR / max(1, len(tested))
    for row in tested:
        row["p"] = float(f"{tail(row['proved'], row['draws'], ERROR):.3g}")
    rejected = [row for row in tested if row["p"] < strict]
    searches = [row for row in rows if row["part"] == "handed out" and row["outside"]]
    for row in searches:
        row["p"] = float(f"{tail(row['handed out'], row['draws'], HANDED_OUT):.3g}")
    refused = [row for row in searches if row["p"] < ERROR / len(searches)]
    order = {part: k for k, part in enumerate(PARTS)}
    rates = [row["proved"] / row["draws"] for row in tested]
    return {
        "error": ERROR,
        "cells": len(tested),
        "draws": sum(row["draws"] for row in tested),
        "significance of a cell": strict,
        "cells rejected": [f"{row['name']}, {row['n']} samples" for row in rejected],
        "largest share falsely proved": max(rates, default=0.0),
        "handed out": {
            "error": HANDED_OUT,
            "cells": len(searches),
            "cells rejected": [f"{row['name']}, {row['n']} samples" for row in refused],
            "largest share": max((r["handed out"] / r["draws"] for r in searches), default=0.0),
        },
        "never provable, proved": sum(r["proved"] for r in rows if r["part"] == "never"),
        "bars": bars(),
        "rows": sorted(rows, key=lambda row: (order[row["part"]], row["name"], row["n"])),
    }


def bars() -> Row:
    """Return the verdicts of perfect answers at the least number of samples, and one below."""
    found: Row = {}
    for text, least in (("cosine>=0.999", 59), ("top1>=base-0.01", 299)):
        for n in (least, least - 1):
            same = np.ones((n, 1))
            found[f"{text}, {n} unchanged"] = str(
                judge_accuracy(Budget.parse(text), same, same).verdict
            )
    return found


def tail(hits: int, draws: int, chance: float) -> float:
    """Return the probability of so many hits or more, exactly."""
    logs = [
        math.lgamma(draws + 1) - math.lgamma(k + 1) - math.lgamma(draws - k + 1)
        + k * math.log(chance) + (draws - k) * math.log1p(-chance)
        for k in range(hits, draws + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def told(found: Row) -> str:
    """Return the outcome in a few lines."""
    rejected = ", ".join(found["cells rejected"]) or "none"
    return (
        f"{found['cells']} cells, {found['draws']} draws; falsely proved in"
        f" {found['largest share falsely proved']:.1%} at most; rejected: {rejected}\n"
        f"searches whose plans are all outside hand one out in"
        f" {found['handed out']['largest share']:.1%} at most;"
        f" rejected: {', '.join(found['handed out']['cells rejected']) or 'none'}\n"
        f"never provable and proved: {found['never provable, proved']}\n{found['bars']}"
    )


if __name__ == "__main__":
    main()
