"""Files converted for a GPU run there; needs onnxruntime's CUDA provider and a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.devices import MODEL, decibel, digits, on_cpu, skip_without

from ortune.backends.cuda import Cuda
from ortune.cli.main import main

pytestmark = skip_without(Cuda())


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
@pytest.mark.parametrize(("precision", "least_db"), [("fp32", 50.0), ("fp16", 40.0)])
def test_float_files_run_on_the_gpu(
    tmp_path: Path, precision: str, least_db: float, level: str
) -> None:
    out = tmp_path / "gpu.onnx"
    words = ["--precision", precision, "--target", "gpu", "--opt-level", level]
    assert main(["convert", str(MODEL), str(out), *words]) == 0
    feeds = digits(4)
    with Cuda().open(out) as session:
        assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= least_db
