"""The same models through the peers' own tools and through ortune, timed in one paired run.

    python -m benchmarks.peers [--only TOOL ...] [--model NAME ...] [--until made | --table]

Each tool runs in an environment of its own under ``.cache/peers``, made from
``benchmarks/peers/requirements``: 7 GB in all. Files that were made from the same things are taken
again. Results: ``benchmarks/results/peers.json``, and from it the tables of ``docs/peers.md``.
An idle machine; about an hour from nothing, twenty minutes with the files there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, calibration
from benchmarks.peers.environments import Environment, environment
from benchmarks.peers.making import RECIPES, Made, make, recipes
from benchmarks.peers.table import fill
from benchmarks.result_files import result_file, write_results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = result_file("peers")
PAGE = ROOT / "docs" / "peers.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), metavar="TOOL")
    parser.add_argument("--model", nargs="+", choices=list(CASES), metavar="NAME")
    parser.add_argument("--until", choices=["made", "searched", "table"], default="table")
    parser.add_argument("--kept", action="store_true", help="take ortune's searches of before")
    parser.add_argument("--table", action="store_true", help="write the page from the results")
    parser.add_argument("--seconds", type=float, default=120, help="timing of one model")
    parser.add_argument("--time", default="2m", help="of each of ortune's own searches")
    asked = parser.parse_args()
    if not asked.table:
        envs = [environment(tool) for tool in asked.only or RECIPES]
        for name in asked.model or CASES:
            _run(CASES[name], envs, asked)
    if asked.until == "table":
        PAGE.write_text(fill(PAGE.read_text(), json.loads(RESULTS.read_text())))


def _run(case: Case, envs: list[Environment], asked: argparse.Namespace) -> None:
    """Make, search and measure one model; its results are written at once."""
    from benchmarks.peers.measuring import THREADS, about, measure
    from benchmarks.peers.searching import found

    folder = case.write(case.name)
    made = _made(case, folder, envs)
    if asked.until == "made":
        _score(case, folder, made)
        return
    own = found(case, folder, THREADS, asked.time, kept=asked.kept)
    if asked.until == "searched":
        return
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"cases": {}}
    tools = {
        env.tool: {"install_s": env.seconds, "bytes": env.size, "error": env.error} for env in envs
    }
    whole = about() | {
        "tools": known.get("tools", {}) | tools,
        "cases": known["cases"] | {case.name: measure(case, folder, made, own, asked.seconds)},
    }
    write_results(RESULTS, whole)


def _made(case: Case, folder: Path, envs: list[Environment]) -> list[Made]:
    samples = calibration(case.name, folder)
    found = []
    for env in envs:
        for recipe in recipes(env.tool, case):
            one = make(case, folder / "model.onnx", samples, env, recipe)
            said = one.error or f"{one.size / 1e6:.1f} MB, {one.note}"
            print(f"{case.name}: {one.tool} {recipe}: {one.seconds} s, {said}", flush=True)
            found.append(one)
    return found


def _score(case: Case, folder: Path, made: list[Made]) -> None:
    from benchmarks.peers.measuring import CPU
    from benchmarks.peers.scoring import scored

    for one in made:
        if not one.error:
            found = scored(case, folder, one.path(case.name), CPU)
            said = found.error or ", ".join(f"{k} {v:.4g}" for k, v in found.values.items())
            print(f"{case.name}: {one.tool} {one.recipe}: {said}", flush=True)


if __name__ == "__main__":
    main()
