"""The example of a plug-in: what CMake does without NVIDIA's headers, and the model for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "tensorrt_plugin"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")
def test_without_headers_nothing_is_built_and_that_is_said(tmp_path: Path) -> None:
    command = ["cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), "-DTENSORRT_INCLUDE=NOTFOUND"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not built: " in done.stdout
    assert not list(tmp_path.glob("*swish*.so"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler here")
def test_the_kernel_compiles(tmp_path: Path) -> None:
    command = ["nvcc", "-std=c++17", "-c", str(EXAMPLE / "swish.cu"), "-o", str(tmp_path / "k.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_model_has_the_operator(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py"), str(tmp_path)], check=True)
    model = onnx.load(tmp_path / "swish.onnx")
    onnx.checker.check_model(model)
    assert [(node.domain, node.op_type) for node in model.graph.node][1] == ("example", "Swish")
