"""Engines by TensorRT's own API; needs its Python package, cuda-bindings and a device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.tensorrt import library
from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.bundle.engine.golden import snr_db
from ortune.core.errors import BadData
from ortune.core.session import DeviceTimed
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
RANGES = ("image:1x1x28x28..8x1x28x28..4x1x28x28",)

pytestmark = pytest.mark.skipif(
    library.explain_missing_tensorrt() is not None,
    reason=f"no engine can be built here: {library.explain_missing_tensorrt()}",
)


def feed(rows: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(rows).standard_normal((rows, 1, 28, 28))
    return {"image": values.astype(np.float32)}


def test_an_engine_answers_as_the_cpu_at_every_size_of_its_profile(tmp_path: Path) -> None:
    out = tmp_path / "digit.engine"
    backend = TensorrtEngine(profiles=RANGES)
    backend.save(MODEL, out)
    assert json.loads(out.with_suffix(".layers.json").read_text())["Layers"]
    with backend.open(out) as engine, Cpu().open(MODEL) as cpu:
        for rows in (1, 4, 8, 3):
            assert snr_db(cpu.run(feed(rows)), engine.run(feed(rows))) > 60
        with pytest.raises(BadData, match="lies outside the engine's profiles"):
            engine.run(feed(9))
        assert engine.placement()["TensorRT"] > 0
        assert isinstance(engine, DeviceTimed)
        engine.stage(feed(4))
        engine.compute()


def test_each_of_two_profiles_is_taken_for_its_sizes(tmp_path: Path) -> None:
    two = TensorrtEngine(profiles=("image:1x1x28x28..4x1x28x28", "image:5x1x28x28..32x1x28x28"))
    with two.open(MODEL) as engine, Cpu().open(MODEL) as cpu:
        for rows in (2, 20, 3):
            assert snr_db(cpu.run(feed(rows)), engine.run(feed(rows))) > 60
