"""Files converted for a GPU run there; needs onnxruntime's CUDA provider and a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ortune.cli.main import main
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="no CUDA provider here: it takes onnxruntime-gpu and a device",
)


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
@pytest.mark.parametrize(("precision", "least_db"), [("fp32", 50.0), ("fp16", 40.0)])
def test_float_files_run_on_the_gpu(
    tmp_path: Path, precision: str, least_db: float, level: str
) -> None:
    out = tmp_path / "gpu.onnx"
    words = ["--precision", precision, "--target", "gpu", "--opt-level", level]
    assert main(["convert", str(MODEL), str(out), *words]) == 0
    feed = {"image": np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)}
    wanted = run(MODEL, feed, "CPUExecutionProvider")
    found = run(out, feed, "CUDAExecutionProvider")
    noise = ((wanted - found) ** 2).sum()
    assert 10 * np.log10((wanted**2).sum() / max(noise, 1e-30)) >= least_db


def run(path: Path, feed: dict[str, np.ndarray], provider: str) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=[provider])
    assert session.get_providers()[0] == provider
    return np.asarray(session.run(None, feed)[0], np.float64)
