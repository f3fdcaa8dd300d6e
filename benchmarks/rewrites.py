"""Every exact transform on every real model: alone, all in order, and in shuffled orders.

    python -m benchmarks.rewrites [--model NAME] [--file MODEL.onnx] [--shuffles 20]

Each way is compared with the untouched model on real samples, at the runtime's level ``disabled``
so that nothing else rewrites: same shapes and types, the lowest SNR over all outputs, the file's
growth. A transform that raises is rolled back, as a recipe does, and its reason is kept. Results:
``benchmarks/results/rewrites.json``, one row a model and way that edited something. Half an hour
on two cores; it need not be idle.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from tests import sweeps

from benchmarks.options import Case, cases
from ortune.core.session import Tensors
from ortune.core.step import Transform
from ortune.data import feeds as given
from ortune.data import synthetic
from ortune.data.stream import Stream
from ortune.engine.golden import snr_db
from ortune.measurement.machine.machine import machine, versions
from ortune.model.analysis.facts import facts
from ortune.model.graph import edit
from ortune.model.io import file
from ortune.model.io.check import check, signature

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "rewrites.json"
SAMPLES = 3
WANTED_DB = 100.0
GROWTH = 1.01
SHAPES = ("resnet50", "lstm", "bert", "gpt2")


def every_case(folder: Path, files: Sequence[Path]) -> Iterator[Case]:
    """Yield the models of the real jobs, the shapes where torch is there, and files given."""
    for path in files:
        yield Case(path.stem, path, folder / "none")
    if files:
        return
    yield from cases(folder)
    if find_spec("torch") is not None:
        from benchmarks import shapes

        for name in SHAPES:
            home = shapes.write(name)
            yield Case(name, home / "model.onnx", home / "data")


def samples(case: Case, folder: Path) -> list[Tensors]:
    """Return a few samples: the case's own, else made-up ones."""
    inputs = facts(file.load(case.model)).inputs
    if case.samples.is_dir():
        few = folder / "few"
        few.mkdir(exist_ok=True)
        names = {spec.name for spec in inputs}
        for path in sorted(case.samples.glob("*.npz"))[:SAMPLES]:
            np.savez(few / path.name, **{k: v for k, v in np.load(path).items() if k in names})
        found = given.load(str(few), inputs, folder)
    else:
        found = synthetic.make(inputs, folder, shapes={}, ranges={}, count=SAMPLES)
    stream = Stream(found.stream)
    return [dict(stream[i]) for i in range(min(SAMPLES, found.count))]


def outputs(path: Path, feeds: Sequence[Tensors]) -> list[list[Any]]:
    """Run a file as it is written."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return [session.run(None, {n: np.array(f[n]) for n in names}) for f in feeds]


def snr(wanted: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """Return the lowest SNR over samples and outputs, dB; integers must be equal.

    Values that are not finite must be the same in both; NaN in one alone gives minus infinity.

    Raises:
        ValueError: Shapes or types differ.
    """
    worst = math.inf
    for one, two in zip(
        (a for row in wanted for a in row), (a for row in found for a in row), strict=True
    ):
        if one.shape != two.shape or one.dtype != two.dtype:
            raise ValueError(f"{two.dtype}{two.shape} for {one.dtype}{one.shape}")
        if one.dtype.kind != "f":
            worst = worst if (one == two).all() else -math.inf
        else:
            worst = min(worst, snr_db({"": one}, {"": two}))
    return worst


def way(
    model: ir.Model, steps: Sequence[Transform]
) -> tuple[ir.Model, dict[str, int], dict[str, str]]:
    """Apply steps as a recipe does; return the model, edits and reasons by transform."""
    edits: dict[str, int] = {}
    reasons: dict[str, str] = {}
    before = signature(model)
    now = model.clone()
    for step in steps:
        backup = now.clone()
        try:
            count = step.apply(now)
            if count:
                check(now, before, step.name())
                edits[step.name()] = count
            if said := edit.take_notes(now):
                reasons[step.name()] = said
        except Exception as error:
            now = backup
            reasons[step.name()] = f"rolled back: {type(error).__name__}: {error}"[:300]
    return now, edits, reasons


def run(
    case: Case, orders: Sequence[tuple[str, Sequence[Transform]]]
) -> Iterator[Mapping[str, Any]]:
    """Yield a row for every way that edited the model, and for those that were rolled back."""
    with tempfile.TemporaryDirectory(prefix="ortune-rewrites-") as temporary:
        folder = Path(temporary)
        feeds = samples(case, folder)
        model = file.load(case.model)
        wanted = outputs(case.model, feeds)
        size = file.size(case.model)
        nodes = sum(1 for _ in edit.every_node(model))
        for name, steps in orders:
            start = time.perf_counter()
            made, edits, reasons = way(model, steps)
            took = time.perf_counter() - start
            broken = [why for why in reasons.values() if why.startswith("rolled back")]
            if not broken and not set(edits) - ({"raise-opset"} if len(steps) > 1 else set()):
                continue
            row: dict[str, Any] = {"model": case.name, "way": name, "edits": edits}
            row |= {
                "seconds": round(took, 3),
                "nodes": [nodes, sum(1 for _ in edit.every_node(made))],
            }
            row |= {"reasons": reasons} if name != "all in order" or reasons else {}
            try:
                path = file.save(made, folder / "made.onnx")
                row["size"] = round(file.size(path) / size, 4)
                reached = snr(wanted, outputs(path, feeds))
                row["snr_db"] = None if math.isinf(reached) and reached > 0 else round(reached, 1)
                row["wrong"] = not reached >= WANTED_DB
            except Exception as error:
                row |= {"wrong": True, "error": f"{type(error).__name__}: {error}"[:300]}
            yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="of the cases; all if not given")
    parser.add_argument("--file", action="append", type=Path, default=[], help="another model")
    parser.add_argument("--way", action="append", help="a transform, or 'all in order'")
    parser.add_argument("--shuffles", type=int, default=20)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    orders = [o for o in sweeps.orders(asked.shuffles) if not asked.way or o[0] in asked.way]
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ortune-rewrites-") as folder:
        for case in every_case(Path(folder), asked.file):
            if asked.model and case.name not in asked.model:
                continue
            ways = {name for name, _ in orders}
            rows = [r for r in rows if r["model"] != case.name or r["way"] not in ways]
            try:
                for row in run(case, orders):
                    wrong += row["wrong"]
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            except Exception as error:
                print(f"{case.name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            about = {"machine": machine(), "versions": versions()}
            RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    print(f"{len(rows)} rows, {wrong} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
