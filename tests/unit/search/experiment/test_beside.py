"""Figures shown beside the budget's score never decide and never stop anything."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import ortune as ot
from ortune.core.trial import Verdict

SCALAR = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,1] y) {
  axes = Constant<value = int64[1] {1}>()
  y = ReduceSum<keepdims = 1>(x, axes)
}
"""


@pytest.fixture
def scalar(tmp_path: Path) -> tuple[Path, Path]:
    model = tmp_path / "scalar.onnx"
    onnx.save(onnx.parser.parse_model(SCALAR), model)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((20, 4)).astype(np.float32))
    return model, tmp_path / "data.npz"


@pytest.mark.parametrize("budget", ["snr>=80", "cosine>=0.99", "max-error<=0.1", None])
def test_a_scalar_output_has_no_agreement_and_is_judged(
    scalar: tuple[Path, Path], budget: str | None
) -> None:
    model, data = scalar
    found = ot.verify(model, model, data=data, budget=budget)
    assert found.verdict is not Verdict.FAILS
    assert "agreement" not in [score.metric for score in found.scores]


def test_agreement_that_is_asked_for_says_why_it_cannot_be(scalar: tuple[Path, Path]) -> None:
    model, data = scalar
    with pytest.raises(ot.OrtuneError, match="no output of y has classes"):
        ot.verify(model, model, data=data, budget="agreement>=0.99")


def test_what_is_shown_beside_is_what_a_budget_of_it_would_read(
    scalar: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = scalar
    other = tmp_path / "other.onnx"
    rounded = SCALAR.replace("y = Reduce", "s = Reduce").replace("\n}", "\n  y = Round(s)\n}")
    onnx.save(onnx.parser.parse_model(rounded), other)
    verified = ot.verify(model, other, data=data, budget="max-error<=1")
    assert verified.answers is not None and set(verified.worst) <= set(verified.answers.samples)
    lost = {verified.answers.scores[place] for place in range(20)}
    assert len(verified.worst) == 8 and verified.worst.keys() and max(lost) <= 1
    beside = verified.scores
    asked = ot.verify(model, other, data=data, budget="snr>=-100").scores[0]
    assert [score.value for score in beside if score.metric == "snr"] == [asked.value]
