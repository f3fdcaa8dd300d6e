"""`tensorrt` on a device: precisions, profiles, graphs, and engines kept or built anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.gpu.devices import MODEL, decibel, digits, on_cpu, share, skip_without

from ortune.backends.runtimes.onnxruntime import engine_cache
from ortune.backends.tensorrt import Tensorrt
from ortune.cli.main import main
from ortune.core.errors import BackendMissing
from ortune.core.session import DeviceTimed

pytestmark = skip_without(Tensorrt())
FIXED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { p = MatMul(x, w) y = Relu(p) }
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def converted(folder: Path, *words: str) -> Path:
    out = folder / "out.onnx"
    assert main(["convert", str(MODEL), str(out), *words]) == 0
    return out


@pytest.mark.parametrize(("precision", "least_db"), [("graph", 50.0), ("fp16", 40.0)])
def test_float_models_answer_as_the_cpu(precision: str, least_db: float) -> None:
    with Tensorrt(precision=precision).open(MODEL) as session:  # type: ignore[arg-type]
        assert share(session.placement(), Tensorrt.provider) > 0.5
        feeds = digits(4)
        assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= least_db


def test_an_fp16_graph_is_taken_as_it_is(tmp_path: Path) -> None:
    out = converted(tmp_path, "--precision", "fp16", "--target", "gpu")
    feeds = digits(4)
    with Tensorrt().open(out) as session:
        assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= 40


def test_int8_pairs_are_taken_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **digits(32))
    words = ("--precision", "int8", "--target", "tensorrt", "--data", str(tmp_path / "data.npz"))
    out = converted(tmp_path, *words)
    feeds = digits(8)
    with Tensorrt().open(out) as session:
        assert decibel(on_cpu(out, feeds), session.run(feeds)) >= 20


def test_sizes_within_a_profile_take_one_engine() -> None:
    one = Tensorrt(profiles=("image:1x1x28x28..32x1x28x28..8x1x28x28",))
    with engine_cache.watch_engines() as watch, one.open(MODEL) as session:
        for count in (1, 8, 32):
            feeds = digits(count)
            assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= 50
    assert watch.warm == [False]


def test_engines_are_kept_and_built_anew_for_other_options(tmp_path: Path) -> None:
    with engine_cache.watch_engines(root=tmp_path / "engines") as watch:
        for backend in (Tensorrt(), Tensorrt(), Tensorrt(precision="fp16")):
            with backend.open(MODEL) as session:
                session.run(digits(1))
    assert watch.warm == [False, True, False]


def test_a_torn_engine_is_built_again(tmp_path: Path) -> None:
    feeds = digits(1)
    with engine_cache.watch_engines(root=tmp_path / "engines") as watch:
        with Tensorrt().open(MODEL) as session:
            session.run(feeds)
        engines = list((tmp_path / "engines").rglob("*.engine"))
        assert engines
        engines[0].write_bytes(engines[0].read_bytes()[:100])
        with Tensorrt().open(MODEL) as session:
            assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= 50
    assert watch.warm == [False, False]


def test_a_cuda_graph_replays_on_new_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(FIXED), path)
    rng = np.random.default_rng(0)
    with Tensorrt(cuda_graph=True).open(path) as session:
        assert isinstance(session, DeviceTimed)
        for _ in range(5):
            feeds = {"x": rng.random((4, 8), np.float32), "w": rng.random((8, 8), np.float32)}
            assert decibel(on_cpu(path, feeds), session.run(feeds)) >= 50


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(BackendMissing, match="TensorrtExecutionProvider"):
        Tensorrt(device=999).open(MODEL).__enter__()
