"""The same models through the peers' own tools and through ortune, timed in one paired run.

    python -m benchmarks.peers [--only TOOL ...] [--model NAME ...] [--make | --table]

Each tool runs in an environment of its own under ``.cache/peers``, made from
``benchmarks/peers/requirements``: 6 GB in all. Files that were made from the same things are taken
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

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), metavar="TOOL")
    parser.add_argument("--model", nargs="+", choices=list(CASES), metavar="NAME")
    parser.add_argument(
        "--make", action="store_true", help="make and score the files, time nothing"
    )
    parser.add_argument("--table", action="store_true", help="write the page from the results")
    parser.add_argument("--seconds", type=float, default=120, help="timing of one model")
    parser.add_argument("--time", default="2m", help="of each of ortune's own searches")
    asked = parser.parse_args()
    if not asked.table:
        names = asked.model or list(CASES)
        envs = [environment(tool) for tool in asked.only or RECIPES]
        for name in names:
            case = CASES[name]
            folder = case.write(name)
            made = _made(case, folder, envs)
            if asked.make:
                _score(case, folder, made)
            else:
                _keep(case, folder, made, envs, asked.seconds, asked.time)
    if not asked.make:
        PAGE.write_text(fill(PAGE.read_text(), json.loads(RESULTS.read_text())))


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


def _keep(
    case: Case, folder: Path, made: list[Made], envs: list[Environment], seconds: float, time: str
) -> None:
    """Measure one model and put it in the results at once: a stopped run goes on from there."""
    from benchmarks.peers.measuring import about, measure

    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"cases": {}}
    known["cases"][case.name] = measure(case, folder, made, seconds, time)
    tools = known.get("tools", {}) | {
        env.tool: {"install_s": env.seconds, "bytes": env.size, "error": env.error} for env in envs
    }
    whole = about() | {"tools": tools, "cases": known["cases"]}
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
