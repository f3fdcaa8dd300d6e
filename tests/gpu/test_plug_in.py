"""Every installed plug-in provider on whatever device it offers, such as WebGPU's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.plugin import PluginProvider
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
FEEDS = {"image": np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)}


@pytest.mark.parametrize("backend", PluginProvider.tried(), ids=str)
def test_a_provider_takes_nodes_and_answers_right(backend: PluginProvider) -> None:
    if reason := backend.missing():
        pytest.skip(reason)
    with backend.open(MODEL) as session:
        found = np.asarray(session.run(FEEDS)["logits"], np.float64)
        assert set(session.placement()) - {"CPUExecutionProvider"}
    with Cpu().open(MODEL) as session:
        wanted = np.asarray(session.run(FEEDS)["logits"], np.float64)
    noise = ((wanted - found) ** 2).sum()
    assert 10 * np.log10((wanted**2).sum() / max(noise, 1e-30)) >= 35.0
