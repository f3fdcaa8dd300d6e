"""Quantizer options in pairwise-covering combinations on every real model.

    python -m benchmarks.options [--model NAME] [--quantizer NAME]

Every pair of values of two options is built at least once on every model. The file is valid for
onnx.checker and loads and runs on its backend, or the quantizer refuses with a reason; anything
else is a failure. Results: ``benchmarks/results/options.json``, one row a model and quantizer. An
hour on two cores; it need not be idle.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from allpairspy import AllPairs
from tests.real.task import installed

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.observer import Observer
from ortune.core.plugins import catalog, codec
from ortune.core.step import Quantizer, Recipe
from ortune.data.feeds import Feeds, load
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.process import WorkerFailed, ask_once
from ortune.model.analysis.facts import facts
from ortune.model.graph import edit
from ortune.model.io import file
from ortune.recipe.build import Material, build_in

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "options.json"
SAMPLES = 3

JOBS = (
    "digit_cnn", "pulsevad", "silero", "romanizer", "ppocr_cls", "ppocr_det", "ppocr_rec",
    "magika", "efficientnet_lite0", "minilm",
)  # fmt: skip
SILERO = (
    "silero_vad_16k_op15", "silero_vad_half", "silero_vad_op18_ifless", "silero_vad_openvino_16k",
)  # fmt: skip
"""More files of a package that is a job already; they take the same samples."""


@dataclass(frozen=True)
class Case:
    """A model with samples: a folder of .npz."""

    name: str
    model: Path
    samples: Path


class _Enough(Exception):
    """The score has made all the calls that are wanted."""


def cases(folder: Path) -> Iterator[Case]:
    """Yield every model of the real jobs that is installed."""
    for job in JOBS:
        module = import_module(f"tests.real.jobs.{job}")
        if why := module.missing():
            print(f"{job}: {why}", file=sys.stderr)
            continue
        work = folder / job
        work.mkdir(parents=True)
        task = module.task(work)
        for model in task.models:
            name = job if len(task.models) == 1 else f"{job} {model.stem}"
            samples = task.data or _recorded(task, model, work / model.stem)
            yield Case(name, model, samples)
            if job == "silero":
                for more in SILERO:
                    path = installed("silero-vad", f"silero_vad/data/{more}.onnx")
                    yield Case(more, path, samples)


def _recorded(task: Any, model: Path, folder: Path) -> Path:
    """Keep what the score gives the model in its first calls."""
    import onnxruntime as ort

    folder.mkdir()
    sessions = {path.stem: ort.InferenceSession(path) for path in task.models}
    kept: list[Mapping[str, Any]] = []

    def runner(stem: str) -> Any:
        def run(**inputs: Any) -> dict[str, Any]:
            if stem == model.stem:
                kept.append(inputs)
                np.savez(
                    folder / f"{len(kept)}.npz", **{k: np.array(v) for k, v in inputs.items()}
                )
            if len(kept) == SAMPLES:
                raise _Enough
            session = sessions[stem]
            names = [one.name for one in session.get_outputs()]
            return dict(zip(names, session.run(None, inputs), strict=True))

        return run

    runs = {stem: runner(stem) for stem in sessions}
    with suppress(_Enough):
        task.score(runs if len(runs) > 1 else runs[model.stem])
    return folder


VALUES: Mapping[str, tuple[Any, ...]] = {
    "min_side": (16, 1),
    "min_size": (1024, 1),
    "keep_first": (0, 2),
    "smooth": (0.0, 0.75),
    "split": (0, 4),
    "block": (32, 16, 128, 256),
    "accuracy_level": (0, 4),
}
"""Field -> what is tried of it; booleans, choices and observers are found by themselves."""

NODES = ("include", "exclude", "wide", "keep")
"""Fields of node names: nothing, or the first node that is quantized."""


BACKENDS: Mapping[str, Backend | None] = {"bf16": Openvino(threads=1), "fp8": None}
"""Quantizer -> where its files run, None for nowhere here; all others on the CPU provider."""


def domain(cls: type[Quantizer], node: str | None) -> dict[str, list[Any]]:
    """Return the values of every field that is varied, the default first."""
    hints = typing.get_type_hints(cls)
    found: dict[str, list[Any]] = {}
    for one in fields(cls):
        default = getattr(cls(), one.name)
        if one.name == "keep_io":  # Another model to its callers: other samples.
            continue
        kind = hints[one.name]
        if one.name in VALUES and isinstance(default, int | float):
            values = list(VALUES[one.name])
        elif one.name in NODES:
            values = [default, *([(node,)] if node else [])]
        elif kind is bool:
            values = [default, not default]
        elif typing.get_origin(kind) is Literal:
            values = [default, *(v for v in typing.get_args(kind) if v != default)]
        elif isinstance(default, Observer):
            every = [catalog.load(Observer, name)() for name in catalog.names(Observer)]
            values = [default, *(v for v in every if v.covers and v != default)]
        else:
            continue
        found[one.name] = values
    return found


def combinations(domains: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return settings in which every pair of values of two fields occurs."""
    names = [name for name, values in domains.items() if len(values) > 1]
    if len(names) < 2:
        return [{n: v} for n in names for v in domains[n]] or [{}]
    rows = AllPairs([[codec.encode(v) for v in domains[name]] for name in names])
    by_code = {n: {json.dumps(codec.encode(v)): v for v in domains[n]} for n in names}
    return [
        {n: by_code[n][json.dumps(v)] for n, v in zip(names, row, strict=True)} for row in rows
    ]


@dataclass(frozen=True)
class Outcome:
    """What became of a setting: ``runs``, ``valid`` (no backend here), ``refused``, ``fails``."""

    step: str
    kind: str
    why: str = ""


def outcome(
    case: Case, step: Quantizer, feeds: Feeds, folder: Path, backend: Backend | None
) -> Outcome:
    """Build, check, load and run one setting."""
    material = Material(feeds, tuple(range(feeds.count)))
    try:
        out = build_in(folder / "cache", case.model, Recipe("options", (step,)), material).path
    except OrtuneError as error:
        good = bool(error.what and error.fix)
        return Outcome(str(step), "refused" if good else "fails", error.what)
    except Exception as error:
        return Outcome(str(step), "fails", f"{type(error).__name__}: {error}"[:300])
    try:
        onnx.checker.check_model(str(out), full_check=False)
    except Exception as error:
        return Outcome(str(step), "fails", f"checker: {error}"[:300])
    try:
        if backend is None:
            return Outcome(str(step), "valid")
        why = _first(out, feeds, folder, backend)
        return Outcome(str(step), "fails" if why else "runs", why)
    finally:
        shutil.rmtree(out.parent)


def _first(model: Path, feeds: Feeds, folder: Path, backend: Backend) -> str:
    """Load a model and run it once; return why it cannot."""
    paths = {MAIN: model.resolve()}, backend, {MAIN: feeds.stream.resolve()}
    try:
        ask_once(WorkerJob(*paths, (folder / "job").resolve()), ("first", {}))
    except WorkerFailed as error:
        return f"{backend}: {error.failure.reason}"[:300]
    return ""


def run(case: Case, name: str) -> dict[str, Any]:
    """Try every combination of one quantizer on one model."""
    cls = catalog.load(Quantizer, name)
    model = file.load(case.model)
    node = next(
        (n.name for n in edit.every_node(model) if n.op_type in ("Conv", "MatMul", "Gemm")), None
    )
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="ortune-options-") as temporary:
        folder = Path(temporary)
        inputs = facts(model).inputs
        few = folder / "samples"
        few.mkdir()
        for path in sorted(case.samples.glob("*.npz"))[:SAMPLES]:
            arrays = {k: v for k, v in np.load(path).items() if k not in ("label", "group")}
            names = {spec.name for spec in inputs}
            np.savez(few / path.name, **{k: _cut(v) for k, v in arrays.items() if k in names})
        feeds = load(str(few), inputs, folder)
        backend = BACKENDS.get(name, Cpu(threads=1))
        if backend is not None and _first(case.model, feeds, folder, backend):
            backend = None  # It does not take the original either.
        for setting in combinations(domain(cls, node)):
            try:
                step = cls(**setting)
            except OrtuneError as error:
                found.append(Outcome(f"{name} {setting}", "refused", error.what))
                continue
            found.append(outcome(case, step, feeds, folder, backend))
    count = Counter(one.kind for one in found)
    reasons = Counter(one.why for one in found if one.kind == "refused")
    return {
        "model": case.name,
        "quantizer": name,
        "combinations": len(found),
        "runs": count["runs"],
        "valid": count["valid"],
        "refused": count["refused"],
        "reasons": dict(reasons.most_common(4)),
        "fails": [[one.step, one.why] for one in found if one.kind == "fails"],
    }


def _cut(array: Any) -> Any:
    """A few rows are enough where a file holds thousands."""
    return array[:8] if array.ndim > 1 and len(array) > 8 else array


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="of the jobs; all if not given")
    parser.add_argument("--quantizer", action="append", choices=catalog.names(Quantizer))
    asked = parser.parse_args()
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ortune-options-") as folder:
        for case in cases(Path(folder)):
            if asked.model and case.name not in asked.model:
                continue
            for name in asked.quantizer or catalog.names(Quantizer):
                row = run(case, name)
                failed += len(row["fails"])
                key = (row["model"], row["quantizer"])
                rows = [r for r in rows if (r["model"], r["quantizer"]) != key] + [row]
                print(json.dumps(row), flush=True)
                about = {"machine": machine(), "versions": versions()}
                RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
