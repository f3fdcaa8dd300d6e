"""The peers' race: each tool's best, and ortune's plan, at equal time, timed in paired turns.

    python -m benchmarks.peers.race [name ...] [--prepare] [--only TOOL ...] [--again] [--fresh]

Olive, Optimum, NNCF (with accuracy control too), ModelOpt, Quark, onnx-neural-compressor,
onnxruntime's stock per-channel quantization and its own debugging recipe. ``--prepare`` makes an
environment a tool under ``.cache/peers`` (4 GB), each file of each model, and its scores; no quiet
machine is needed for them, but the seconds that making took are in the table: ``--again`` makes
the files anew, and ``others`` in the results says how many CPUs the rest of the machine used
meanwhile. A call may take ortune's three minutes, and is stopped after half as long again.

Then two searches, one short pilot pair of everybody, and the race of those that `entering.racers`
chooses: five fresh pairs each, in turns, their seconds fixed from the pilot. A race on a machine
that is too noisy for a verdict is run again, at most three times, and all are kept. What is done
lies in ``build/peers_race/NAME``; the same command goes on where it was stopped. Results:
``benchmarks/results/peers_race.json``; tables by ``python -m benchmarks.tables``. An idle machine:
a quarter of an hour a model once prepared.

A try: ``--pair 0.3 --attempts 1 --time 20s --work build/try --out build/try.json``.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import evaluation
from benchmarks.peers.entering import OWN, entries, installed, kept, made, racers, size
from benchmarks.peers.environments import CACHE, Environment, environment
from benchmarks.peers.goals import FACTOR, SECONDS, goal
from benchmarks.peers.judged import Scores
from benchmarks.peers.making import RACED
from benchmarks.result_files import result_file
from benchmarks.speed.budgets import SHAPES, Shape
from benchmarks.speed.contestants import Contestant
from benchmarks.speed.fresh import Kept
from benchmarks.speed.main_job import searched, winner
from benchmarks.speed.neighbour import to_itself
from benchmarks.speed.race import ATTEMPTS, Race
from ortune.backends.cpu import Cpu
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = result_file("peers_race")
WORK = ROOT / "build" / "peers_race"
NAMES = ("efficientnet-lite0", "minilm", "resnet50")
LABELS = ("all backends", "cpu")
THREADS = 1
RACE_S = 480.0
"""For all who race of a model: twice as many as in the main job."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument("--prepare", action="store_true", help="make and score the files only")
    parser.add_argument("--only", nargs="+", choices=list(RACED), metavar="TOOL")
    parser.add_argument("--again", action="store_true", help="make the files anew")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier race kept")
    parser.add_argument("--time", default=f"{SECONDS:.0f}s", help="of each of ortune's searches")
    parser.add_argument("--pair", type=float, help="seconds of a pair, for a try")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    about = {"machine": describe_machine(), "versions": package_versions(), "threads": THREADS}
    about |= {"seconds": SECONDS, "stopped after": FACTOR * SECONDS}
    for name in asked.names or NAMES:
        began = time.monotonic()
        if asked.fresh:
            shutil.rmtree(asked.work / name, ignore_errors=True)
        found = run(SHAPES[name], asked)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        if found is not None:
            kept(asked.out, name, found, NAMES, about)


def run(shape: Shape, asked: argparse.Namespace) -> Row | None:
    """Prepare, search and race one model; None when only prepared."""
    folder, work = shape.write(), asked.work / shape.name
    original = Contestant("original", folder / "model.onnx", Cpu(threads=THREADS))
    envs = [environment(tool) for tool in asked.only or RACED]
    found, scores = [(original, _own("original", tool=""))], _scores(shape, folder, work)
    scores.of([original])
    for env in envs:
        found += _prepared(shape, folder, env, scores, again=asked.again)
    if asked.prepare:
        return None
    searches = {}
    for label in LABELS:
        with to_itself():
            searches[label] = searched(shape, folder, label, asked.time, work)
        mine = winner(folder, label, searches[label])
        about = {"seconds": searches[label]["wall"], "note": searches[label]["plan"]}
        found.append((mine, _own(label, **about)))
    rows = _rows(found, scores)
    with to_itself():
        race = Race(original, folder / "data", work, racers, RACE_S, asked.pair, asked.attempts)
        attempts = race.run([(one, row) for (one, _), row in zip(found, rows, strict=True)])
    return {
        "budget": shape.budget,
        "cpu_budget": shape.cpu_budget,
        "noise": noise.read_current_state(),
        "tools": {env.tool: installed(env) for env in envs},
        "rows": rows,
        "attempts": attempts,
        "searches": searches,
    }


def _scores(shape: Shape, folder: Path, work: Path) -> Scores:
    budgets = (shape.budget, shape.cpu_budget)
    return Scores(folder / "model.onnx", folder / "data", budgets, Kept(work / "scores.jsonl"))


def _prepared(
    shape: Shape, folder: Path, env: Environment, scores: Scores, *, again: bool
) -> list[tuple[Contestant, Row]]:
    """Make and score a tool's files, one after the other: what is done is kept."""
    if again:
        shutil.rmtree(CACHE / env.tool / "raced" / shape.name, ignore_errors=True)
    aim = goal(shape.budget, evaluation(shape.name, folder))
    found = []
    for one in made(shape.name, folder / "model.onnx", aim, env, folder):
        mine = entries(shape.name, [one], THREADS)
        scores.of([entry for entry, _ in mine])
        found += mine
    return found


def _own(recipe: str, *, tool: str = OWN, **more: Any) -> Row:
    return {"tool": tool, "recipe": recipe, "error": "", **more}


def _rows(found: list[tuple[Contestant, Row]], scores: Scores) -> list[Row]:
    known = scores.of([entry for entry, _ in found])
    return [
        facts
        | {
            "name": entry.name,
            "backend": str(entry.backend),
            "size": size(entry.model),
            "error": score["error"],
            "scores": score["scores"],
            "holds": score["holds"],
        }
        for (entry, facts), score in zip(found, known, strict=True)
    ]


if __name__ == "__main__":
    main()
