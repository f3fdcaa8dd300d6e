"""Each real model once as a real job; the whole search, on all backends, is marked long."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import ortune as ot
from tests.real.check import check
from tests.real.task import Task

SLOW = ("ppocr_det", "efficientnet_lite0", "ppocr_rec", "minilm")
"""They come first, so that no worker ends with one of them."""
FILES = (p.stem for p in (Path(__file__).parent / "jobs").glob("*.py") if p.stem[0] != "_")
JOBS = sorted(FILES, key=lambda name: (name not in SLOW, name))


@pytest.fixture(params=JOBS)
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    job = importlib.import_module(f"tests.real.jobs.{request.param}")
    if reason := job.missing():
        pytest.skip(reason)
    made: Task = job.task(tmp_path)
    return made


def search(task: Task, folder: Path, on: str, time: str) -> ot.Study:
    return ot.optimize(
        task.models,
        data=task.data,
        calibration=task.calibration,
        evaluate=task.evaluate,
        budget=task.budget,
        on=on,
        time=time,
        out=folder / "run",
    )


def test_a_short_search_is_never_slower_and_never_wrong(task: Task, tmp_path: Path) -> None:
    study = search(task, tmp_path, task.on, task.time)
    assert len(study.trials) > 1
    check(study, task, tmp_path)


@pytest.mark.long
def test_a_whole_search_is_never_slower_and_never_wrong(task: Task, tmp_path: Path) -> None:
    study = search(task, tmp_path, "auto", "90s")
    check(study, task, tmp_path)
