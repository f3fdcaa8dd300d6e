"""What a job's key holds of the user's own code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models import write_classifier

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.backends.torch import Torch
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note
from ortune.metrics.function import Function
from ortune.search.experiment.experiment import Experiment
from ortune.search.request import ExperimentRequest


@pytest.mark.parametrize("given", [{"labels": "l.csv"}, {"calibration": "folder"}])
@pytest.mark.parametrize("evaluate", ["", "mine:score"])
def test_labels_and_calibration_without_data_are_refused(
    given: dict[str, str], evaluate: str
) -> None:
    asked = ExperimentRequest((Path("m.onnx"),), evaluate=evaluate, **given)  # type: ignore[arg-type]
    with pytest.raises(BadSettings, match="go with --data"):
        asked.read_experiment()


def test_data_for_several_models_are_refused() -> None:
    """They were not: the models had no facts of the name that samples are fed by."""
    asked = ExperimentRequest(("a.onnx", "b.onnx"), evaluate="mine:score", data="folder")
    with pytest.raises(BadSettings, match="cannot feed several models"):
        asked.read_experiment()


def test_an_edited_function_or_file_is_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, weights = tmp_path / "asked_code.py", tmp_path / "w.pt"
    baseline = Torch(source="asked_code:make", weights="w.pt")
    plain = Experiment(models={}, baseline=Cpu(), time=1)
    scored, loaded = replace(plain, evaluate="asked_code:score"), replace(plain, baseline=baseline)
    judged = replace(plain, budget=Budget(Function(path="asked_code:fn"), 0.9))
    for experiment, edited in ((scored, code), (loaded, code), (judged, code)):
        code.write_text("one = 1")
        weights.write_bytes(b"1")
        before = experiment.digest_code()
        assert experiment.digest_code() == before
        edited.write_text("one = 2")
        assert experiment.digest_code() != before
    unweighed = loaded.digest_code()
    weights.write_bytes(b"2")
    assert loaded.digest_code() != unweighed
    assert plain.digest_code() == "", "nothing of the user's is read"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": "garbage"}, "cannot read budget 'garbage'"),
        ({"budget": "nope>=3"}, "no metric 'nope'"),
        ({"budget": "cosine>=0.9|0.8", "target_speedup": 2.0}, "asks for several"),
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
