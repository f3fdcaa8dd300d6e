"""A name that is no input is refused by every option that names one, samples given or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.cli.main import main
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.wording import format_duration
from ortune.data.synthetic import load_or_generate_feeds

IMAGE = TensorSpec("image", "float32", ("N", 4))
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] image) => (float[N,4] y) { y = Relu(image) }
"""
FUNCTIONS = """
def frame(image):
    return image

def score(run):
    return [1.0]
"""


@pytest.mark.parametrize("given", [{"shapes": {"imag": (1, 4)}}, {"ranges": {"imag": (0, 1)}}])
@pytest.mark.parametrize("data", [None, "data.npz"])
def test_the_near_name_is_told(
    tmp_path: Path, data: str | None, given: dict[str, dict[str, tuple[int, int]]]
) -> None:
    np.savez(tmp_path / "data.npz", image=np.ones((2, 4), np.float32))
    source = None if data is None else tmp_path / data
    with pytest.raises(BadData, match="the model has no input 'imag'") as caught:
        load_or_generate_feeds(source, [IMAGE], tmp_path / "out", **given)  # type: ignore[arg-type]
    assert caught.value.fix == "write image"
    with pytest.raises(BadData) as caught:
        load_or_generate_feeds(source, [IMAGE], tmp_path / "out", shapes={"zzz": (1,)})
    assert caught.value.fix == "use one of: image"


@pytest.mark.parametrize(
    "words",
    [
        "bench toy.onnx --data data.npz",
        "bench toy.onnx --end-to-end names_functions:frame --data data.npz",
        "verify toy.onnx toy.onnx --data data.npz",
        "optimize toy.onnx --data data.npz -o run",
        "optimize toy.onnx --evaluate names_functions:score -o run",
        "tune toy.onnx --data data.npz",
        "profile toy.onnx --data data.npz -o out",
        "loadtest toy.onnx --data data.npz",
        "cost toy.onnx --timeline --data data.npz",
    ],
)
@pytest.mark.parametrize("option", ["--shape imag:1x4", "--range imag:0..1"])
def test_every_verb_refuses_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    option: str,
) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    np.savez(tmp_path / "data.npz", image=np.ones((8, 4), np.float32))
    (tmp_path / "names_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), *option.split()]) == 2
    assert "the model has no input 'imag'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "3 s"),
        (0.5, "0.5 s"),
        (60, "1 min"),
        (5400, "1 h 30 min"),
        (90, "1 min 30 s"),
        (0, "0 s"),
    ],
)
def test_a_duration_is_shown_with_its_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
