"""What precision by region adds: a search with it beside one without, winners timed together.

    python -m benchmarks.speed.regions [name ...] [--between] [--time 3m] [--fresh]

Both search the same space for the same time, on all backends at one thread, under the budgets of
``shapes.json`` beside it or, of real jobs, of their tasks; without regions a plan may still leave
its two worst layers out. Then both winners are timed in five fresh pairs each, in turns, and
compared turn by turn. The first search is that of `main_job`, and is taken over where
that kept it. Results: ``benchmarks/results/regions.json``. An idle machine; nine minutes a model.

``--between`` takes budgets that int8 of the whole network misses and that 16 bits, or float alone,
keep with room to spare (`BETWEEN`): what lies between them only a mixture can have.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.result_files import result_file
from benchmarks.speed.budgets import SHAPES, Shape
from benchmarks.speed.contestants import Contestant
from benchmarks.speed.fresh import interval
from benchmarks.speed.main_job import (
    EVERY,
    LABELS,
    THREADS,
    WITHOUT,
    WORK,
    searched,
    winner,
    write,
)
from benchmarks.speed.neighbour import to_itself
from benchmarks.speed.race import Race, direct
from ortune.backends.cpu import Cpu
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.search.experiment.surveys import read_journal
from ortune.search.mixed_precision.survey import MixtureOutcome, Survey

BETWEEN = {
    "minilm": tuple(f"benchmarks.sentences:cosine>={least}" for least in (0.999, 0.9995)),
    "gpt2": ("snr(share=0)>=32",),
    "efficientnet-lite0": tuple(f"snr(share=0)>={least}" for least in (25.5, 28)),
    "resnet50": ("snr(share=0)>=60",),
}
"""The mean cosine of sentences, and the signal to noise ratio over all samples: int8 of the whole
network with all of the accuracy kit keeps about 0.9988, 29 dB, 25.3 dB and 57.1 dB. Nor do 16 bits
keep the last two: efficientnet-lite0 has 26.8 dB in bf16, resnet50 of random weights 49.7."""
RESULTS = result_file("regions")
RACE_S = 150.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(EVERY))
    parser.add_argument("--time", default="3m", help="of each search")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    parser.add_argument("--between", action="store_true", help="budgets between int8 and 16 bits")
    asked = parser.parse_args()
    for name in asked.names or (BETWEEN if asked.between else SHAPES):
        for budget in BETWEEN[name] if asked.between else ("",):
            shape, called = EVERY[name], name
            if budget:
                shape, called = replace(shape, budget=budget), f"{name}, {budget}"
            work = WORK / re.sub(r"[^\w.-]+", "-", called)
            if asked.fresh:
                shutil.rmtree(work, ignore_errors=True)
            began = time.monotonic()
            write(RESULTS, called, run(shape, asked.time, work), threads=THREADS)
            print(f"{called}: {time.monotonic() - began:.0f} s", flush=True)


def run(shape: Shape, limit: str, work: Path) -> dict[str, Any]:
    """Search twice, and time both winners; where they are one plan there is nothing to time."""
    made = shape.write()
    labels = (LABELS[0], WITHOUT)
    with to_itself():
        found = {label: searched(shape, made, label, limit, work) for label in labels}
    surveyed = _surveyed(work / labels[0].replace(" ", "-"))
    plans = [(one["recipe"], one["on"]) for one in found.values()]
    entries = [winner(made, label, about) for label, about in found.items()]
    told: dict[str, Any] = {
        "budget": shape.budget,
        "time": limit,
        "machine": describe_machine(),
        "versions": package_versions(),
        "noise": noise.read_current_state(),
        "searches": found,
        "surveyed": surveyed,
        "same": plans[0] == plans[1],
    }
    return told if told["same"] else told | _raced(made, entries, work / "regions")


def _raced(made: Path, entries: list[Contestant], work: Path) -> dict[str, Any]:
    original = Contestant("original", made / "model.onnx", Cpu(threads=THREADS))
    every = [
        (one, {"name": one.name, "backend": str(one.backend), "error": "", "holds": []})
        for one in (original, *entries)
    ]
    names = [one.name for one in entries]
    race = Race(original, made / "data", work, lambda rows, pilots: names, RACE_S)
    with to_itself():
        attempts = race.run(every)
    blocks = attempts[-1]["blocks"]
    return {
        "ratios": {name: attempts[-1]["ratios"][name] for name in names},
        "with over without": interval(direct(blocks[names[0]], blocks[names[1]])),
        "attempts": attempts,
    }


def _surveyed(root: Path) -> dict[str, Any]:
    """Return what a search did by region."""
    every = read_journal(root)
    surveys = [one for one in every if isinstance(one, Survey)]
    mixtures = [one for one in every if isinstance(one, MixtureOutcome)]
    return {
        "surveys": len(surveys),
        "seconds": round(sum(one.seconds for one in surveys), 1),
        "mixtures": len(mixtures),
        "kept": sum(one.kept for one in mixtures),
    }


if __name__ == "__main__":
    main()
