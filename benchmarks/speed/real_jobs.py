"""Samples of the real jobs as files: what the job itself feeds, or its labelled data."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tests.real.task import Task

from ortune.core.atomic_write import open_draft
from ortune.core.errors import OrtuneError

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "jobs"
_MOST = 200
"""Samples that are kept of a job that feeds itself."""


def written(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration``.

    A job that evaluates itself has the inputs of its own calls in both, evenly picked; where one
    has no samples to calibrate on, ``calibration`` is a link to ``data``.

    Raises:
        OrtuneError: What it needs is not installed, or it is a job of several models.
    """
    folder, job = CACHE / name, import_module(f"tests.real.jobs.{name.replace('-', '_')}")
    if folder.is_dir():
        return folder
    if why := job.missing():
        raise OrtuneError(f"{name} is not installed", fix=why)
    with TemporaryDirectory(prefix="ortune-") as made, open_draft(folder) as draft:
        task: Task = job.task(Path(made))
        if len(task.models) != 1:
            raise OrtuneError(f"{name} is a job of {len(task.models)} models", fix="take another")
        draft.mkdir(parents=True)
        shutil.copy(task.models[0], draft / "model.onnx")
        if task.evaluate is None:
            shutil.copytree(task.data, draft / "data")
            if task.calibration is None:
                (draft / "calibration").symlink_to("data")
            else:
                shutil.copytree(task.calibration, draft / "calibration")
        else:
            _record(task, draft)
    return folder


def _record(task: Task, folder: Path) -> None:
    model = folder / "model.onnx"
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names, calls = [one.name for one in session.get_outputs()], []

    def run(**inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        calls.append(inputs)
        return dict(zip(names, session.run(names, inputs), strict=True))

    task.score(run)
    for part in ("data", "calibration"):
        (folder / part).mkdir()
        for count, inputs in enumerate(calls[:: max(1, len(calls) // _MOST)]):
            np.savez(folder / part / f"{count:04}.npz", **inputs)
