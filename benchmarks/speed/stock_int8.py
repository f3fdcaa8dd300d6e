"""Static int8 on onnxruntime's CPU provider: ours beside the stock tool's per-channel file.

    python -m benchmarks.speed.stock_int8 [--files FOLDER] [model ...]

The models, samples and ratios of `benchmarks.speed.executed_int8`, on one thread: the float32
model, `int8-static` behind the exact steps, and the file of onnxruntime's own tool (unsigned
activations, signed weights, one step a channel, min-max) from the same calibration samples. All
take turns on the same samples. ``--files`` keeps what is made. Results: ``stock_int8.json``. An
idle machine; ten minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import ortune as ot
from benchmarks.result_files import result_file, write_results
from benchmarks.speed.contestants import SIGNED, UNSIGNED, write_static
from benchmarks.speed.executed_int8 import (
    CONVOLUTIONS,
    SAMPLES,
    SECONDS,
    TRANSFORMERS,
    Run,
    compute_snr,
    find_model,
    read_feed,
    summarize_ratio,
    time_in_turns,
)
from ortune.backends.cpu import Cpu
from ortune.measurement.machine.machine import describe_machine, package_versions


def main() -> None:
    """Make, race and score the files of every model; write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path, help="where the files stay")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as temporary:
        for name in asked.models or [*CONVOLUTIONS, *TRANSFORMERS]:
            folder = (asked.files or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            rows += race_model(name, folder)
            print(json.dumps(rows[-2:]), file=sys.stderr, flush=True)
    about = {"machine": describe_machine(), "versions": package_versions()}
    write_results(result_file("stock_int8"), about | {"rows": rows})


def race_model(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return a row a file: median milliseconds, ratio to ours and signal to noise ratio."""
    made = find_model(name)
    model, calibration = made / "model.onnx", made / "calibration"
    ours, stock = folder / "ours.onnx", folder / "stock.onnx"
    if not ours.is_file():
        ot.apply(model, ["simplify", "int8-static"], data=calibration, out=ours)
    if not stock.is_file():
        write_static(calibration, UNSIGNED, SIGNED, True, model, stock)
    feeds = [read_feed(path) for path in sorted((made / "data").glob("*.npz"))[:SAMPLES]]
    files = {"float32": model, "ours": ours, "stock": stock}
    with ExitStack() as stack:
        runs: dict[str, Run] = {
            label: stack.enter_context(Cpu(threads=1).open(path)).run
            for label, path in files.items()
        }
        answers = {label: [dict(run(feed)) for feed in feeds] for label, run in runs.items()}
        times = time_in_turns(runs, feeds, SECONDS * len(files))
    expected = answers["float32"]
    return [
        {
            "model": name,
            "file": label,
            "ms": round(float(np.median(times[label])) * 1e3, 3),
            "to ours": summarize_ratio(times[label], times["ours"]),
        }
        | ({} if label == "float32" else {"snr": round(compute_snr(expected, answers[label]), 1)})
        for label in files
    ]


if __name__ == "__main__":
    main()
