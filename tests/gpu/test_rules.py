"""TensorRT takes what the rules of int8 and float16 write, and refuses what they leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.gpu.devices import MODEL, decibel, digits, on_cpu, skip_without

from ortune.backends.tensorrt import Tensorrt
from ortune.cli.main import main
from ortune.core.errors import OrtuneError
from ortune.graph.io import file
from ortune.graph.lint import gpu

pytestmark = skip_without(Tensorrt())


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for seed in range(8):
        np.savez(tmp_path / "data" / f"{seed}.npz", **digits(seed + 1))
    return tmp_path / "data"


def answers(path: Path) -> float:
    """Return how near a file on the GPU is to the model on the CPU, in dB."""
    feeds = digits(4)
    with Tensorrt().open(path) as session:
        return decibel(on_cpu(MODEL, feeds), session.run(feeds))


def test_int8_with_float_biases(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    words = ["--precision", "int8", "--target", "tensorrt", "--data", str(samples)]
    assert main(["convert", str(MODEL), str(out), *words]) == 0
    assert answers(out) > 20


def test_int8_with_the_rest_in_float16(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "mixed.onnx"
    steps = ["raise-opset(to=19)", "int8-static(target=tensorrt)", "fp16(pairs=true)"]
    words = ["--data", str(samples), "-o", str(out)]
    assert main(["apply", str(MODEL), *steps, *words]) == 0
    assert answers(out) > 20


def test_float16_with_islands(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.onnx"
    words = ["--data", str(samples), "-o", str(out)]
    assert main(["apply", str(MODEL), "fp16(islands=1)", *words]) == 0
    assert answers(out) > 40


def test_what_is_for_a_cpu_is_refused(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "cpu.onnx"
    words = ["--data", str(samples), "-o", str(out)]
    assert main(["apply", str(MODEL), "int8-static(activations=u8)", *words]) == 0
    assert gpu.lint_tensorrt(file.load(out))
    with pytest.raises(OrtuneError):
        answers(out)
