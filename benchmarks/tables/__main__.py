"""The tables of README and the documentation, written from the committed results alone.

    python -m benchmarks.tables [--check]

Each table stands between two marks with its name; what is between them is written anew. A test
holds pages and results together; ``--check`` only says whether they agree, exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.result_files import RESULTS, find_results
from benchmarks.tables import gpu
from benchmarks.tables.accuracy import (
    coverage,
    dead_outputs,
    derived_budgets,
    detector,
    handed_out,
    lost,
    noisy_outputs,
    offered,
    operators,
    power,
    wrong_optimizers,
)
from benchmarks.tables.attacks import attacks
from benchmarks.tables.features import (
    buckets,
    executed_int8,
    fuzzing,
    openvino_overhead,
    sequences,
    stock_int8,
)
from benchmarks.tables.first_minutes import demos, installed, pythons, users
from benchmarks.tables.fleet import fleet
from benchmarks.tables.generation import generation, memory, perplexity, sentences
from benchmarks.tables.growth import draw_growth, growth
from benchmarks.tables.peers import peers_race
from benchmarks.tables.search import found, regions, replayed, unseen, unseen_readme
from benchmarks.tables.serving import hostile, overhead, peers, pinned, soak
from benchmarks.tables.speed import (
    aa_cells,
    aa_summary,
    again,
    busy,
    main_job,
    uninterrupted,
)

ROOT = Path(__file__).resolve().parents[2]

Writer = Callable[[Any], str]
TABLES: Mapping[str, tuple[str, Writer]] = {
    "readme": ("unseen", unseen_readme),
    "installed": ("installed", installed),
    "demos": ("demos", demos),
    "first minutes": ("first_minutes", users),
    "pythons": ("pythons", pythons),
    "main job": ("main_job", main_job),
    "aa": ("aa", aa_summary),
    "aa cells": ("aa", aa_cells),
    "busy": ("busy", busy),
    "clock": ("clock", uninterrupted),
    "coverage": ("coverage", coverage),
    "power": ("coverage", power),
    "handed out": ("coverage", handed_out),
    "offered": ("coverage", offered),
    "accuracy lost": ("accuracy_lost", lost),
    "again": ("again", again),
    "buckets": ("buckets", buckets),
    "dead outputs": ("dead_outputs", dead_outputs),
    "derived budgets": ("derived_budgets", derived_budgets),
    "detector": ("detector", detector),
    "noisy outputs": ("dead_outputs", noisy_outputs),
    "operators": ("operators", operators),
    "openvino overhead": ("openvino_overhead", openvino_overhead),
    "sequences": ("sequences", sequences),
    "gpu levels": ("gpu", gpu.levels),
    "gpu races": ("gpu", gpu.races),
    "gpu batches": ("gpu", gpu.batches),
    "gpu serving": ("gpu", gpu.serving),
    "gpu tests": ("gpu", gpu.tests),
    "found": ("found", found),
    "unseen": ("unseen", unseen),
    "attacks": ("attacks", attacks),
    "growth": ("growth", growth),
    "fleet": ("fleet", fleet),
    "generation": ("generation", generation),
    "memory": ("memory", memory),
    "perplexity": ("perplexity", perplexity),
    "sentence encoder": ("sentence_encoder", sentences),
    "regions": ("regions", regions),
    "replay": ("replay", replayed),
    "wrong optimizers": ("wrong_optimizers", wrong_optimizers),
    "peers race": ("peers_race", peers_race),
    "serving peers": ("serving_peers", peers),
    "serving overhead": ("serving_overhead", overhead),
    "serving pinned": ("serving_pinned", pinned),
    "serving soak": ("serving_soak", soak),
    "serving hostile": ("serving_hostile", hostile),
    "fuzzing": ("fuzzing", fuzzing),
    "executed int8": ("executed_int8", executed_int8),
    "stock int8": ("stock_int8", stock_int8),
}
"""Name of a table -> the results that it is written from, and its writer."""
_TABLED = (
    *(
        "accuracy",
        "benchmarks",
        "detectors",
        "first-minutes",
        "fuzzing",
        "gpu",
        "looking",
        "machines",
        "quantizing",
    ),
    *("peers", "providers", "rewriting", "sequences", "serving", "text", "threat-model"),
)
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in _TABLED),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    stale = []
    for page in PAGES:
        before = page.read_text()
        after = filled(before, RESULTS)
        if after != before:
            stale.append(page.name)
            if not asked.check:
                page.write_text(after)
    pictures = {"growth": draw_growth}
    for name, source in ((k, path) for k in pictures for path in find_results(k)):
        picture = ROOT / "docs" / f"{name}.svg"
        drawn = pictures[name](json.loads(source.read_text()))
        if not picture.is_file() or picture.read_text() != drawn:
            stale.append(picture.name)
            if not asked.check:
                picture.write_text(drawn)
    print(f"{'stale' if asked.check else 'written'}: {', '.join(stale) or 'none'}")
    return int(asked.check and bool(stale))


def marks(name: str) -> tuple[str, str]:
    """Return the lines around a table."""
    return f"<!-- {name}: by benchmarks.tables -->", f"<!-- end of {name} -->"


def names(page: str) -> list[str]:
    """Return the tables that a page has marks for."""
    return [name for name in TABLES if marks(name)[0] in page]


def filled(page: str, results: Path) -> str:
    """Return the page with its tables written anew.

    Args:
        results: Folder of the JSON files; a table whose file is not there says so.

    Raises:
        ValueError: A table has no closing mark.
    """
    for name in names(page):
        begin, end = marks(name)
        before, _, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not closed:
            raise ValueError(f"the page has no {end}")
        page = f"{before}{begin}\n{_written(name, results)}\n{end}{after}"
    return page


def _written(name: str, results: Path) -> str:
    source, write = TABLES[name]
    files = find_results(source, results)
    if not files:
        return f"Not measured yet: there is no {source}.json among the results."
    contents = [json.loads(path.read_text()) for path in files]
    for content in contents:
        content.pop("commit", None)  # some tables take every other key for a row
    return "\n\n".join(filter(None, map(write, contents)))


def every(pages: Iterable[Path] = PAGES) -> dict[str, list[str]]:
    """Return the tables of each page, for the test."""
    return {page.name: names(page.read_text()) for page in pages}


if __name__ == "__main__":
    raise SystemExit(main())
