"""OpenVINO on Intel's GPUs and NPUs; needs the device, its driver and OpenVINO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
FEEDS = {"image": np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)}


def answer(backend: Backend) -> tuple[np.ndarray, set[str]]:
    with backend.open(MODEL) as session:
        return np.asarray(session.run(FEEDS)["logits"], np.float64), set(session.placement())


@pytest.mark.parametrize(
    ("device", "precision", "least_db"),
    [("gpu", "f32", 50.0), ("gpu", "f16", 35.0), ("npu", "f16", 35.0)],
)
def test_a_device_computes_itself_and_right(device: str, precision: str, least_db: float) -> None:
    backend = Openvino(device=device, precision=precision)  # type: ignore[arg-type]
    if reason := backend.missing():
        pytest.skip(reason)
    found, placed = answer(backend)
    assert any(device.upper() in place or "ExecutionProvider" in place for place in placed)
    wanted, _ = answer(Cpu())
    noise = ((wanted - found) ** 2).sum()
    assert 10 * np.log10((wanted**2).sum() / max(noise, 1e-30)) >= least_db
