"""The models of the tables: the nine shapes of the main job, and real models with real jobs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tests.real.task import Task

from benchmarks.speed.budgets import SHAPES
from ortune.backends.openvino import Openvino
from ortune.core.errors import OrtuneError
from ortune.search.request import Optimize

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "search"
JOBS = (
    "digit_cnn", "silero", "ppocr_rec", "ppocr_cls", "ppocr_det", "magika", "pulsevad",
    "pulsevad_int8", "romanizer",
)  # fmt: skip
NAMES = (*SHAPES, *(name.replace("_", "-") for name in JOBS))
CPU = "cpu(threads=1)"


def asked(name: str, out: Path) -> Optimize:
    """Return the search whose every plan is measured: one thread, all backends.

    Args:
        out: The run's folder.

    Raises:
        OrtuneError: There is no such model, or what it needs is not installed.
    """
    if name not in NAMES:
        raise OrtuneError(f"no model {name}", fix=f"use one of: {', '.join(NAMES)}")
    on = f"{CPU},openvino(threads=1)" if Openvino().missing() is None else CPU
    if name in SHAPES:
        shape = SHAPES[name]
        made = shape.write()
        return Optimize(
            (made / "model.onnx",), data=made / "data", calibration=made / "calibration",
            budget=shape.budget, on=on, baseline=CPU, out=out,
        )  # fmt: skip
    found = _task(name)
    return Optimize(
        found.models, data=found.data, calibration=found.calibration, evaluate=found.evaluate,
        budget=found.budget, on=on, baseline=CPU, out=out,
    )  # fmt: skip


def _task(name: str) -> Task:
    """Write a real job's samples once; what was written broken off is written anew."""
    job = import_module(f"tests.real.jobs.{name.replace('-', '_')}")
    if why := job.missing():
        raise OrtuneError(f"{name} is not installed", fix=why)
    folder, draft = WORK / name / "samples", WORK / name / "samples.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    found: Task = job.task(draft)
    if folder.is_dir():
        shutil.rmtree(draft)
    else:
        draft.rename(folder)
    moved = [_moved(path, draft, folder) for path in (found.data, found.calibration)]
    models = tuple(
        folder / p.relative_to(draft) if p.is_relative_to(draft) else p for p in found.models
    )
    return replace(found, models=models, data=moved[0], calibration=moved[1])


def _moved(path: Path | None, draft: Path, folder: Path) -> Path | None:
    if path is None or not path.is_relative_to(draft):
        return path
    return folder / path.relative_to(draft)
