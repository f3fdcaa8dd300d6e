"""What `tune` finds: two threads beside a busy neighbour, and a model with denormal weights.

    python -m benchmarks.tune [--time 120] [--models minilm digit-cnn]

The settings found are then timed apart from the search, in fresh pairs of processes, against the
defaults and against one thread, beside the same neighbour. Results:
``benchmarks/results/tune.json``. Needs a machine with two cores that is idle otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.real.samples import written

import ortune as ot
from benchmarks import gates
from ortune.analysis.tuning.descent import whole
from ortune.core.backend import Backend
from ortune.core.plugins import codec, spelling
from ortune.core.trial import Interval
from ortune.data import synthetic
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine.load import busy
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.process import Worker, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.model.analysis import facts
from ortune.model.io import file
from ortune.samples import digit_cnn

RESULTS = Path(__file__).resolve().parent / "results" / "tune.json"
START = "cpu(threads=2)"
ONE = "cpu(threads=1)"
PAIRS = 4
Shapes = Mapping[str, tuple[int, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=120, help="seconds for each search")
    parser.add_argument("--models", nargs="*", default=["minilm", "digit-cnn"])
    asked = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    found |= {"machine": machine(), "versions": versions(), "seconds": asked.time}
    for name in asked.models:
        model, shapes = _model(name)
        found[f"{name}, two threads beside a neighbour"] = _neighbour(model, shapes, asked.time)
    found["denormal weights"] = _denormals(asked.time)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def _model(name: str) -> tuple[Path, Shapes]:
    if name == "digit-cnn":
        path = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
        return path, {"image": (32, 1, 28, 28)}
    return written(name) / "model.onnx", {}


def _neighbour(model: Path, shapes: Shapes, seconds: float) -> dict[str, Any]:
    """Tune at two threads beside a busy core, then time what was found."""
    tuned = codec.encode(ot.tune(model, on=START, shapes=shapes, seconds=seconds, beside_load=1))
    pairs = {
        "the best over two threads as they come": (START, tuned["best"]),
        "the best over one thread": (ONE, tuned["best"]),
        "two threads as they come over one": (ONE, START),
    }
    return _short(tuned) | {
        what: codec.encode(_ratio(model, shapes, {}, *pair, cores=1))
        for what, pair in pairs.items()
    }


def _denormals(seconds: float) -> dict[str, Any]:
    """Tune the gates; their twin with weights of 1e-3 says how fast they could be."""
    with TemporaryDirectory(prefix="ortune-") as folder:
        model = gates.write(Path(folder) / "gates.onnx")
        plain = gates.write(Path(folder) / "plain.onnx", scale=1e-3)
        tuned = codec.encode(ot.tune(model, on=ONE, ranges=gates.RANGE, seconds=seconds))
        flag = _ratio(model, {}, gates.RANGE, ONE, f"{ONE[:-1]}, flush_denormals=true)")
        twin = _ratio(plain, {}, gates.RANGE, ONE, f"{ONE[:-1]}, flush_denormals=true)")
    return _short(tuned) | {
        "flushing over not": codec.encode(flag),
        "the same with ordinary weights": codec.encode(twin),
    }


def _short(tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what a reader asks for."""
    names = ("start", "best", "ratio", "cpu_ratio", "finished", "denormals", "cpus", "noise")
    steps = [
        {key: one[key] for key in ("value", "ratio", "kept", "why")} for one in tuned["attempts"]
    ]
    return {name: tuned[name] for name in names} | {"attempts": steps}


def _ratio(
    model: Path,
    shapes: Shapes,
    ranges: Mapping[str, tuple[float, float]],
    base: str,
    other: str,
    *,
    cores: int = 0,
) -> Interval:
    """Time two settings of one model in fresh pairs, every run counted."""
    with TemporaryDirectory(prefix="ortune-") as folder, busy(cores):
        root = Path(folder)
        inputs = facts.facts(file.load(model)).inputs
        stream = synthetic.make(inputs, root, shapes=shapes, ranges=ranges).stream
        pairs = []
        for _ in range(PAIRS):
            with (
                Worker(_job(model, stream, base, root)) as one,
                Worker(_job(model, stream, other, root)) as two,
            ):
                for worker in (one, two):
                    worker.ask("load")
                    worker.ask("first")
                pairs.append(whole(time_pair(one, two, Effort(seconds=2.5, decide=False))))
    return stats.ratio(pairs)


def _job(model: Path, stream: Path, backend: str, root: Path) -> WorkerJob:
    return WorkerJob(
        models={MAIN: model.resolve()},
        backend=spelling.parse(Backend, backend),
        feeds={MAIN: stream},
        out=worker_folder(root / "workers", "tune"),
    )


if __name__ == "__main__":
    main()
