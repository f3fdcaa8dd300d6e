"""Rules of onnxruntime's optimizer that are wrong in some release, and what a comparison names.

    python -m benchmarks.accuracy.wrong_optimizers [--releases 1.23.2,1.25.1]

Each model is compared with itself by the installed release, and by others in environments of ours
(`ortune doctor env add onnxruntime==1.23.2` makes one). No time is measured here.
Results: ``benchmarks/results/wrong_optimizers.json``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx
from onnx import parser
from tests.unit.wrong_models import FAILING, FORMERLY, UNLOADABLE, WRONG

from benchmarks.result_files import RESULTS, write_results
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime.session import version_here
from ortune.core.capabilities import HERE
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.synthetic import generate_feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.process import Worker, single_model_job

SAMPLES, LEAST_DB = 4, 20.0


def compare(text: str, environment: str, folder: Path) -> dict[str, Any]:
    """Return what the optimizers of an environment make of a model, and which are named."""
    model = folder / "m.onnx"
    onnx.save(parser.parse_model(text), model)
    feeds = generate_feeds(read_facts(file.load(model)).inputs, folder, shapes={}, ranges={})
    job = single_model_job(model, Cpu(), feeds.stream, folder, "self", environment=environment)
    with Worker(job) as worker:
        answer = worker.ask("compare_with_itself", samples=SAMPLES, least_db=LEAST_DB)
    if answer["failure"]:
        outcome = "does not load" if "does not load" in answer["failure"] else "fails"
    else:
        outcome = "right" if answer["disable"] == [] else "wrong"
    return {"outcome": outcome, "dB": answer["decibels"], "named": answer["disable"]}


def main() -> None:
    """Compare every model in every release and write the results."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--releases", default="1.23.2,1.25.1", help="in ort-NAME")
    others = arguments.parse_args().releases.split(",")
    places = {version_here(): HERE, **{name: f"ort-{name}" for name in others if name}}
    texts = {name: text for name, (text, _) in (WRONG | UNLOADABLE | FAILING).items()} | FORMERLY
    rows = []
    for name, text in texts.items():
        releases = {}
        for release, environment in places.items():
            with open_temporary_folder() as folder:
                releases[release] = compare(text, environment, folder)
        print(name, releases, flush=True)
        rows.append({"model": name, "releases": releases})
    write_results(RESULTS / "wrong_optimizers.json", {"rows": rows})


if __name__ == "__main__":
    main()
