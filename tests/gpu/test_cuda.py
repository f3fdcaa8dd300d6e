"""`cuda` on a device: precisions and levels, buffers, graphs, and no silent fall-back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.gpu.devices import MODEL, decibel, digits, on_cpu, share, skip_without

from ortune.backends.cuda import Cuda
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import main
from ortune.core.backend import GraphLevel
from ortune.core.errors import BackendMissing, BadSettings
from ortune.core.session import DeviceTimed

pytestmark = skip_without(Cuda())
LEVELS: list[GraphLevel] = ["disabled", "basic", "extended", "all"]
FIXED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { p = MatMul(x, w) y = Relu(p) }
"""
DYNAMIC = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 8] x) => (float[M] y) {
  shape = Shape(x)
  total = ReduceProd<keepdims = 1>(shape)
  y = Reshape(x, total)
}
"""


def write(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("precision", "least_db"), [("fp32", 60.0), ("fp16", 40.0)])
def test_every_precision_and_level_answers_as_the_cpu(
    tmp_path: Path, precision: str, least_db: float, level: GraphLevel
) -> None:
    out = tmp_path / "gpu.onnx"
    words = ["--precision", precision, "--target", "gpu", "--opt-level", "basic"]
    assert main(["convert", str(MODEL), str(out), *words]) == 0
    with Cuda(level=level).open(out) as session:
        assert share(session.placement(), Cuda.provider) > 0.5
        for count in (1, 4, 1, 32):
            feeds = digits(count)
            assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= least_db


def test_tf32_is_off_by_default_and_less_exact() -> None:
    feeds = digits(32)
    wanted = on_cpu(MODEL, feeds)
    with Cuda().open(MODEL) as exact, Cuda(tf32=True).open(MODEL) as rounded:
        found = decibel(wanted, exact.run(feeds))
        assert found >= 90 and found >= decibel(wanted, rounded.run(feeds))


def test_bound_buffers_give_the_same_and_are_timed_apart() -> None:
    feeds = digits(4)
    with Cuda().open(MODEL) as bound, Cuda(io_binding=False).open(MODEL) as plain:
        assert isinstance(bound, DeviceTimed) and not isinstance(plain, DeviceTimed)
        for name, array in plain.run(feeds).items():
            np.testing.assert_allclose(bound.run(feeds)[name], array, rtol=1e-5, atol=1e-6)
        bound.stage(feeds)
        bound.compute()


def test_a_cuda_graph_replays_on_new_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, FIXED)
    rng = np.random.default_rng(0)
    with Cuda(cuda_graph=True).open(path) as session:
        for _ in range(5):
            feeds = {"x": rng.random((4, 8), np.float32), "w": rng.random((8, 8), np.float32)}
            assert decibel(on_cpu(path, feeds), session.run(feeds)) >= 90


def test_a_cuda_graph_of_open_sizes_is_refused_with_what_is_in_its_way(tmp_path: Path) -> None:
    opening = Cuda(cuda_graph=True).open(write(tmp_path, DYNAMIC))
    with pytest.raises(BadSettings, match="no fixed shape"):
        opening.__enter__()


def test_a_device_that_is_not_there_is_named() -> None:
    reason = Cuda(device=999).missing()
    assert reason and Cuda(device=999).state(reason) == "no device"
    with pytest.raises(BackendMissing, match="CUDAExecutionProvider"):
        Cuda(device=999).open(MODEL).__enter__()


def test_a_provider_that_cannot_start_never_falls_back_in_silence() -> None:
    """No GPU is visible to the process: onnxruntime alone would run on the CPU."""
    code = (
        "import sys, pathlib\n"
        "from ortune.backends.cuda import Cuda\n"
        "Cuda().open(pathlib.Path(sys.argv[1])).__enter__()"
    )
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(MODEL)],
        capture_output=True,
        text=True,
        check=False,
        env=hidden,
    )
    assert done.returncode == 1
    assert "BackendMissing" in done.stderr and "CUDAExecutionProvider" in done.stderr


def test_requests_that_are_joined_get_their_own_answers_in_batches_of_one_size() -> None:
    feeds = digits(5)
    wanted = on_cpu(MODEL, feeds)
    with load_engine(MODEL, on=Cuda(), max_batch=4) as engine:

        async def ask() -> list[Mapping[str, Any]]:
            rows = [{name: array[[at]] for name, array in feeds.items()} for at in range(5)]
            return await asyncio.gather(*(engine.submit(**row) for row in rows))

        answers = asyncio.run(ask())
    joined = {name: np.concatenate([one[name] for one in answers]) for name in wanted}
    assert decibel(wanted, joined) >= 60


def test_a_rewritten_graph_is_saved_and_runs(tmp_path: Path) -> None:
    out = tmp_path / "saved.onnx"
    Cuda(level="extended").save(MODEL, out)
    feeds = digits(2)
    with replace(Cuda(), level="disabled").open(out) as session:
        assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= 60


def test_the_profiler_names_its_kernels(tmp_path: Path) -> None:
    with Cuda().record(MODEL, tmp_path) as session:
        for _ in range(5):
            session.run(digits(1))
        found = session.recorded(4)
    assert any(node.provider == Cuda.provider and node.kernel_ns for node in found.nodes)
