"""An original that does not agree with itself: what is fixed before a search begins."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.unit import wrong_models

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadSettings
from ortune.core.event import Event, Note
from ortune.core.self_agreement import SelfAgreement
from ortune.data.stream import Stream
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import read_header, write_header
from ortune.search.experiment.prepare import prepare_context
from ortune.search.request import ExperimentRequest


def prepared(text: str, folder: Path, **given: object) -> tuple[Context, list[str]]:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note) and event.warning:
            said.append(event.text)

    experiment = ExperimentRequest(folder / "m.onnx", **given).read_experiment()  # type: ignore[arg-type]
    (folder / "run").mkdir(exist_ok=True)
    return prepare_context(experiment, folder / "run", listen), said


def test_the_original_runs_without_what_makes_it_wrong(tmp_path: Path) -> None:
    context, said = prepared(wrong_models.POOLED, tmp_path)
    assert context.job.baseline == Cpu(disable=("Pad_Fusion",)) and context.provable
    assert "optimizer Pad_Fusion changes the answers of m.onnx" in said[-1] == context.doubt
    part = context.parts["search"]
    assert part.expected is not None
    feeds = Stream(context.feeds[""])[part.indices[0]]
    with Cpu(level="disabled").open(tmp_path / "m.onnx") as session:
        expected = session.run(feeds)["y"]
    np.testing.assert_allclose(Stream(part.expected)[0]["y"], expected, atol=1e-6)


def test_a_run_that_goes_on_keeps_what_was_left_out(tmp_path: Path) -> None:
    """It is not looked for again; runs of older versions left nothing out."""
    first, _ = prepared(wrong_models.POOLED, tmp_path)
    again, _ = prepared(wrong_models.POOLED, tmp_path)
    assert again.job == first.job and again.agreement == first.agreement
    header = read_header(tmp_path / "run")
    older = replace(header.job, baseline=Cpu())
    write_header(tmp_path / "run", replace(header, agreement=SelfAgreement(), job=older))
    assert prepared(wrong_models.POOLED, tmp_path)[0].job.baseline == Cpu()


def test_nothing_is_proved_against_a_random_original(tmp_path: Path) -> None:
    context, said = prepared(wrong_models.NOISY, tmp_path)
    assert not context.provable and said[-1] == context.doubt
    assert "does not agree with itself" in context.doubt
    assert "--ignore-output y" in context.doubt


def test_other_outputs_than_the_random_ones_are_compared(tmp_path: Path) -> None:
    context, _ = prepared(wrong_models.NOISY, tmp_path, ignore_output=("y",))
    assert context.provable and not context.doubt and not context.watched
    part = context.parts["search"]
    assert part.expected is not None and list(Stream(part.expected)[0]) == ["z"]


def test_a_budget_on_an_output_that_is_not_random_can_be_proved(tmp_path: Path) -> None:
    context, _ = prepared(wrong_models.NOISY, tmp_path, budget="snr(output=z)>=40")
    assert context.provable and not context.watched
    assert "does not agree with itself" in context.doubt


def test_something_must_be_left_to_compare(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="nothing is left to compare"):
        prepared(wrong_models.TOSSED, tmp_path, ignore_output=("y",))
