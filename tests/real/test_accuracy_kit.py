"""The accuracy kit on real networks: int8 answers as fp32 does on data it was not fitted to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortune.core.plugins import spelling
from ortune.core.step import Quantizer, Recipe
from ortune.data import feeds
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.search.recipe.build import build
from tests.real.samples import sample, written

PER_TENSOR = "int8-static(per_channel=false)"


def outputs(model: Path, folder: Path) -> np.ndarray:
    """Return the logits of all views."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    files = sorted(folder.glob("*.npz"))
    return np.concatenate([session.run(None, {"image": np.load(f)["image"]})[0] for f in files])


def made(source: Path, folder: Path, *steps: str) -> Path:
    """Build with the samples that calibrate."""
    recipe = Recipe("kit", tuple(spelling.parse_plugin(Quantizer, step) for step in steps))
    inputs = edit.list_inputs(file.load(source))
    found = feeds.load_feeds(source.parent / "calibration", inputs, folder)
    return build(source, recipe, folder / "out.onnx", feeds=found).path


@pytest.mark.long
def test_efficientnet_answers_as_fp32_does(tmp_path: Path) -> None:
    """Photos that calibrate are scikit-image's, those that judge are foolbox's."""
    if reason := sample("efficientnet-lite0").missing():
        pytest.skip(reason)
    home = written("efficientnet-lite0")
    wanted = outputs(home / "model.onnx", home / "data")

    def judged(*steps: str) -> tuple[float, float]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        found = outputs(made(home / "model.onnx", folder, *steps), home / "data")
        noise = np.square(found - wanted).sum()
        agree = float((found.argmax(axis=1) == wanted.argmax(axis=1)).mean())
        return agree, float(10 * np.log10(np.square(wanted).sum() / noise))

    plain, kit = judged("int8-static"), judged("adaptive-rounding", "int8-static")
    coarse = judged(PER_TENSOR)
    rounded = judged(f"adaptive-rounding(before={PER_TENSOR})", PER_TENSOR)
    corrected = judged(f"bias-correction(before={PER_TENSOR})", PER_TENSOR)
    assert min(plain[0], kit[0]) >= 0.95
    assert kit[1] > plain[1] + 3
    assert rounded[0] >= 0.92
    assert rounded[1] > coarse[1] + 5
    assert coarse[1] + 2 < corrected[1] < rounded[1]


def test_the_digit_cnn_runs_in_integers_and_reads_as_before(tmp_path: Path) -> None:
    """Its large product stands before a Relu that leads to the head, too narrow for integers."""
    home = written("digit-cnn")
    found = made(home / "model.onnx", tmp_path, "int8-static")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(found), options, providers=["CPUExecutionProvider"])
    runs = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert (runs["QLinearConv"], runs["QGemm"], runs["Gemm"]) == (3, 1, 1)
    assert not runs["DequantizeLinear"]
    labels = np.load(home / "data" / "digits.npz")["label"]
    before, after = (
        float((outputs(model, home / "data").argmax(axis=1) == labels).mean())
        for model in (home / "model.onnx", found)
    )
    assert after >= before - 0.003
