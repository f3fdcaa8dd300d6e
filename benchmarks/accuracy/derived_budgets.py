"""Searches of real models by derived budgets alone, beside scores that the budgets never see.

    python -m benchmarks.accuracy.derived_budgets [name ...] [--seconds 60] [--samples 300]

The samples are what each model of ``tests/real/jobs`` is fed while it is scored, without labels;
one thread, every backend that is installed. Every plan that was judged is scored from outside. One
that the budget accepts and that loses more than a point there should have been refused; one that
it refuses and that loses nothing is the price. Verdicts need no quiet machine, the speed of
winners does. Results: ``benchmarks/results/MACHINE/derived_budgets.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.real.check import run_trial
from tests.real.task import Task

import ortune as ot
from benchmarks.accuracy.sessions import open_plain_session
from benchmarks.result_files import result_file, write_results
from ortune.backends.openvino import Openvino
from ortune.core.trial import Trial
from ortune.core.workload import spread_indices
from ortune.measurement.machine.machine import describe_machine, package_versions

RESULTS = result_file("derived_budgets")
JOBS = (
    *("digit_cnn", "efficientnet_lite0", "magika", "minilm", "ppocr_cls", "ppocr_det"),
    *("ppocr_rec", "pulsevad", "silero"),
)
"""Those of one model: of several none is searched without a function that scores them."""
BACKENDS = (
    ("cpu(threads=1)",) if Openvino().missing() else ("cpu(threads=1)", "openvino(threads=1)")
)
ALLOWED = 0.01
"""Loss of the score from outside that a user would not call a loss."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument("--samples", type=int, default=300, help="of each search, at most")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    cases = json.loads(asked.out.read_text())["cases"] if asked.out.exists() else {}
    for name in asked.names or JOBS:
        job = import_module(f"tests.real.jobs.{name}")
        if why := job.missing():
            print(f"{name} is left out: {why}", flush=True)
            continue
        with TemporaryDirectory() as folder:
            cases[name] = search_by_outputs(job.task(Path(folder)), Path(folder), asked)
        for row in cases[name]["plans"]:
            print(f"{name}: {row}", flush=True)
        found = {"seconds": asked.seconds, "cases": cases}
        about = {"machine": describe_machine(), "versions": package_versions()}
        write_results(asked.out, about | found)


def search_by_outputs(task: Task, folder: Path, asked: argparse.Namespace) -> Row:
    """Search one model on recorded samples, and score what was judged from outside."""
    samples = folder / "recorded"
    count = record_samples(task, samples, asked.samples)
    study = ot.optimize(
        task.models[0], data=samples, time=f"{asked.seconds:g}s", on=",".join(BACKENDS),
        out=folder / "run",
    )  # fmt: skip
    original = task.score(open_plain_session(task.models[0]))
    rows = []
    for trial in list_judged(study):
        if trial.score is None or trial.key == study.baseline.key:
            continue
        try:
            with run_trial(study, trial, folder / f"{trial.key}.ortune") as run:
                scored = task.score(run)
        except ot.OrtuneError as error:
            print(f"not scored: {trial.plan}: {error}", flush=True)
            continue
        rows.append(
            {"plan": study.label(trial.plan), "part": trial.part,
             "verdict": str(trial.score.verdict), "value": trial.score.value,
             "basis": trial.score.basis, "lost": original - scored,
             "ratio": None if trial.ratio is None else trial.ratio.value,
             "winner": trial.key == study.best.key}
        )  # fmt: skip
    return {
        "samples": count, "budget": str(study.budget), "rule": study.job.budget_rule,
        "original": original, "plans": rows,
    }  # fmt: skip


def list_judged(study: ot.Study) -> Iterator[Trial]:
    """Yield each plan's last trial: that of the final where it came so far."""
    yield from {trial.plan: trial for trial in study.trials}.values()


def record_samples(task: Task, folder: Path, most: int) -> int:
    """Write what the original is fed while it is scored, evenly spread; return how many."""
    fed: list[dict[str, NDArray[Any]]] = []
    session = open_plain_session(task.models[0])

    def run(**inputs: Any) -> dict[str, NDArray[Any]]:
        fed.extend(split_batch({name: np.asarray(value) for name, value in inputs.items()}))
        return session(**inputs)

    task.score(run)
    folder.mkdir()
    chosen = spread_indices(len(fed), most)
    for at in chosen:
        np.savez(folder / f"{at:05}.npz", **fed[at])
    return len(chosen)


def split_batch(inputs: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Return the rows of a batch; of inputs that have none in common what was given."""
    lengths = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
    if len(lengths) > 1 or lengths <= {0, 1}:
        return [inputs]
    return [
        {name: array[at : at + 1] for name, array in inputs.items()} for at in range(lengths.pop())
    ]


if __name__ == "__main__":
    main()
