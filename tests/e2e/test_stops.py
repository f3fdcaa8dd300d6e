"""Plans that hang, crash or crawl cost a search one trial each, and little of its time."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.models import write_classifier
from tests.picking import Pick, searching_by

import ortune as ot
from ortune.core.trial import Status

LIMIT_S = 20
"""It is 10 s on an idle machine."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_classifier(tmp_path_factory.mktemp("task"))


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        pytest.param("hang(at=load)", "no answer to 'load'", marks=pytest.mark.long),
        pytest.param("hang", "no answer to 'first'", marks=pytest.mark.long),
        ("hang(at=burst)", "no answer to 'burst'"),
        ("crash(divides=true)", "SIGFPE"),
        ("slowed(by=1000)", "stopped early|no answer to '(first|burst)'"),
    ],
)
def test_a_plan_that_goes_wrong_costs_a_few_seconds(
    task: tuple[Path, Path],
    tmp_path: Path,
    backend: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searching_by(monkeypatch, Pick())
    began = time.monotonic()
    study = ot.optimize(
        task[0],
        data=task[1],
        on=backend,
        budget="top1>=base-0.02",
        time="60s",
        out=tmp_path / "run",
    )
    (trial,) = study.trials[1:]
    assert re.search(said, trial.why)
    assert trial.status is (Status.SLOWER if trial.stopped else Status.FAILED)
    assert trial.seconds < LIMIT_S
    assert study.finished == "done" and study.best is study.baseline
    assert time.monotonic() - began < 60 + LIMIT_S
