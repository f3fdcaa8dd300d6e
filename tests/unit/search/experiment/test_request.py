"""What a job's key holds of the user's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.models import write_classifier

import ortune as ot
from ortune.backends.torch import Torch
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note
from ortune.search.experiment.request import ExperimentRequest


@pytest.mark.parametrize("given", [{"labels": "l.csv"}, {"calibration": "folder"}])
@pytest.mark.parametrize("evaluate", ["", "mine:score"])
def test_labels_and_calibration_without_data_are_refused(
    given: dict[str, str], evaluate: str
) -> None:
    asked = ExperimentRequest((Path("m.onnx"),), evaluate=evaluate, **given)  # type: ignore[arg-type]
    with pytest.raises(BadSettings, match="go with --data"):
        asked.names  # noqa: B018


def test_an_edited_function_or_file_is_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, weights = tmp_path / "asked_code.py", tmp_path / "w.pt"
    baseline = Torch(source="asked_code:make", weights="w.pt")
    scored = ExperimentRequest((), evaluate="asked_code:score")
    for request, edited in ((scored, code), (ExperimentRequest((), baseline=baseline), code)):
        code.write_text("one = 1")
        weights.write_bytes(b"1")
        before = request.functions_digest()
        assert request.functions_digest() == before
        edited.write_text("one = 2")
        assert request.functions_digest() != before
    weights.write_bytes(b"2")
    assert ExperimentRequest((), baseline=baseline).functions_digest() != before
    assert ExperimentRequest(()).functions_digest() == "", "nothing of the user's is read"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": "garbage"}, "cannot read budget 'garbage'"),
        ({"budget": "nope>=3"}, "no 'nope' in metrics"),
        ({"shapes": ["nope:3"]}, "no input 'nope'"),
    ],
)
def test_bad_input_is_told_before_anything_is_noted(
    tmp_path: Path, how: dict[str, Any], said: str
) -> None:
    model, _ = write_classifier(tmp_path)
    told: list[object] = []
    with pytest.raises(OrtuneError, match=said):
        ot.optimize(model, out=tmp_path / "run", sink=told.append, **how)
    assert (
        not [event for event in told if isinstance(event, Note)]
        and not (tmp_path / "run").exists()
    )
