"""The real server loads what is written, batches and answers.

The server is 2.51, not that of release 26.05, and its onnxruntime backend is a stand-in: what the
C++ backend makes of an execution accelerator cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import pack, package
from ortune.measurement.environments.installed import add_environment
from ortune.targets.kserve import Kserve
from ortune.targets.triton import Triton
from tests.unit import studies

HERE = ort.__version__


@pytest.mark.parametrize("batch", [0, 8])
def test_the_real_server_answers_like_the_bundle(
    serve: Callable[[Path], Any], tmp_path: Path, batch: int
) -> None:
    plan = Cpu(threads=2, level="extended", memory_pattern=False)
    bundle = pack(studies.study(tmp_path, backend=plan), tmp_path / "toy.ortune")
    more = {"preferred": (4, 8), "delay_us": 2000, "queue": 64, "instances": 2} if batch else {}
    target = Triton(onnxruntime=HERE, batch=batch, **more)
    repository = package([bundle], tmp_path / "repository", target).path
    with serve(repository) as server:
        shown = server.post("models/toy/config")
        assert shown["backend"] == "onnxruntime" and shown["max_batch_size"] == batch
        assert shown["parameters"]["intra_op_thread_count"]["string_value"] == "2"
        assert shown["optimization"]["graph"]["level"] == 1
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda seed: right(server, seed), range(40)))
        log = server.log.read_text(errors="replace")
    assert "warmup" not in log.lower() or "failed" not in log.lower()


def right(server: Any, seed: int) -> bool:
    x = np.random.default_rng(seed).standard_normal((1, 4)).astype(np.float32)
    given = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": x.ravel().tolist()}
    (answer,) = server.post("models/toy/infer", {"inputs": [given]})["outputs"]
    expected = np.maximum(x + np.array([1, 2, 3, 4], np.float32), 0)
    return bool(np.allclose(np.reshape(answer["data"], answer["shape"]), expected, atol=1e-6))


def test_kserves_repository_loads_too(serve: Callable[[Path], Any], tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    target = Kserve(onnxruntime=HERE)
    out = package([bundle], tmp_path / "package", target).path
    with serve(out / "models") as server:
        assert right(server, 1)


@pytest.mark.usefixtures("environments")
def test_a_bundle_is_replayed_under_the_runtime_of_the_release(tmp_path: Path) -> None:
    add_environment("onnxruntime==1.24.4")
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    found = package([bundle], tmp_path / "a", Triton())
    assert found.replay is not None and found.replay.by == "onnxruntime 1.24.4"
    assert found.replay.difference_db > 40
