"""Engines built and run against the recorded API: calls, their order and their arguments.

The transcripts are written from NVIDIA's documentation and held to the signatures of its bindings;
nothing here was run on a GPU, and no device is imitated. ``tests/gpu`` has what needs one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.recorded import recordings

from ortune.backends import tensorrt_engine
from ortune.backends.runtimes.tensorrt import library
from ortune.backends.runtimes.tensorrt.library import BuildOptions
from ortune.core.errors import BackendMissing, BadData, BadModel, BadSettings, OrtuneError

RANGE = "x:1x4..8x4..4x4"
X, X3 = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((3, 4), np.float32)
ARRAYS = {"x": X, "y": X * 2, "x3": X3, "y3": X3 * 2}


@pytest.mark.parametrize("api", ["10.16", "11.4"])
def test_building_says_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    script = recordings.play(monkeypatch, tmp_path, "build", api=api)
    cache = tmp_path / "cache"
    options = BuildOptions(profiles=(RANGE,), workspace_mb=256, timing_cache=cache)
    assert library.build_engine(tmp_path / "toy.onnx", options) == b"engine"
    assert script.done() == []
    assert [one.read_bytes() for one in cache.iterdir()] == [b"times"]


@pytest.mark.parametrize("api", ["10.16", "11.4"])
def test_running_stages_what_changed_and_copies_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    script = recordings.play(monkeypatch, tmp_path, "load", "run", "close", api=api, **ARRAYS)
    path = tmp_path / "toy.engine"
    path.write_bytes(b"engine")
    with tensorrt_engine.open_engine(path, BuildOptions()) as session:
        for feed, answer in ((X, X * 2), (X, X * 2), (X3, X3 * 2)):
            assert np.array_equal(session.run({"x": feed})["y"], answer)
        assert session.placement() == {"TensorRT": 3}
    assert script.done() == []


def test_computing_alone_copies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortune.core.session import DeviceTimed

    staged = recordings.until("run", "context.execute_async_v3")
    compute = "context.execute_async_v3(77) -> True\ncudart.cudaStreamSynchronize(77) -> 0"
    close = "cudart.cudaFree(4096) -> 0\ncudart.cudaFree(8192) -> 0\n"
    close += "cudart.cudaStreamDestroy(77) -> 0"
    script = recordings.play(monkeypatch, tmp_path, "load", staged, compute, compute, close, x=X)
    path = tmp_path / "toy.engine"
    path.write_bytes(b"engine")
    with tensorrt_engine.open_engine(path, BuildOptions()) as session:
        assert isinstance(session, DeviceTimed)
        session.stage({"x": X})
        session.compute()
        session.compute()
    assert script.done() == []


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"x": np.zeros((9, 4), np.float32)}, "x:9x4 lies outside the engine's profiles: x:1x4"),
        ({"x": np.zeros((2, 4), np.float64)}, "'x' is float64, the engine takes float32"),
        ({}, "'x' is missing"),
    ],
)
def test_feeds_that_the_engine_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: dict[str, np.ndarray], said: str
) -> None:
    begun = "cudart.cudaSetDevice(0) -> 0\nengine.create_execution_context() -> context\n"
    begun += "cudart.cudaStreamCreate() -> 0, 77\ncudart.cudaStreamDestroy(77) -> 0"
    script = recordings.play(monkeypatch, tmp_path, "load", begun)
    path = tmp_path / "toy.plan"
    path.write_bytes(b"engine")
    with (
        tensorrt_engine.open_engine(path, BuildOptions()) as session,
        pytest.raises(BadData, match=said),
    ):
        session.run(feed)
    assert script.done() == []


def test_an_operator_that_is_not_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (
        recordings.until("build", "parser.parse_from_file"),
        "parser.parse_from_file('toy.onnx') -> False",
        "parser.num_errors -> 2",
        "parser.get_error(0) -> error",
        "error.node() -> 3",
        "error.desc() -> 'no importer registered for op: Frobnicate'",
    )
    recordings.play(monkeypatch, tmp_path, *parts)
    with pytest.raises(BadModel, match="node 3: no importer registered for op: Frobnicate"):
        library.build_engine(tmp_path / "toy.onnx", BuildOptions())


def test_an_input_of_open_size_needs_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = recordings.until("build", "builder.create_opt")
    begun = begun.replace("config.set_memory_pool_limit(MemoryPoolType.WORKSPACE, 268435456)", "")
    recordings.play(monkeypatch, tmp_path, begun, "tensor.shape -> (-1, 4)")
    with pytest.raises(BadSettings, match=r"'x' has a dynamic size \(-1x4\)") as caught:
        library.build_engine(tmp_path / "toy.onnx", BuildOptions())
    assert 'profiles=["x:1x3..8x3"]' in caught.value.fix
    recordings.play(monkeypatch, tmp_path, begun)
    with pytest.raises(BadSettings, match="the model has no input 'z'"):
        library.build_engine(tmp_path / "toy.onnx", BuildOptions(profiles=("z:1..2",)))


def test_a_timing_cache_of_another_device_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (
        recordings.until("build", "config.create_timing_cache"),
        "config.create_timing_cache(b'old') -> cache",
        "config.set_timing_cache(cache, False) -> False",
        "config.create_timing_cache(b'') -> fresh",
        "config.set_timing_cache(fresh, False) -> True",
        "builder.build_serialized_network(network, config) -> None",
    )
    recordings.play(monkeypatch, tmp_path, *parts)
    (tmp_path / "timing-10.16.0.72-0.cache").write_bytes(b"old")
    options = BuildOptions(profiles=(RANGE,), workspace_mb=256, timing_cache=tmp_path)
    with pytest.raises(BadModel, match=r"builds no engine of toy\.onnx"):
        library.build_engine(tmp_path / "toy.onnx", options)


def test_plugins_are_loaded_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = recordings.until("build", "builder.create_network")
    refused = "registry.load_library('libmine.so') -> None"
    recordings.play(monkeypatch, tmp_path, begun, refused)
    with pytest.raises(BadSettings, match="does not load the plug-in library"):
        library.build_engine(tmp_path / "toy.onnx", BuildOptions(plugins=("/x/libmine.so",)))


def test_an_engine_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = recordings.until("load", "runtime.deserialize")
    recordings.play(
        monkeypatch, tmp_path, begun, "runtime.deserialize_cuda_engine(b'old') -> None"
    )
    path = tmp_path / "toy.engine"
    path.write_bytes(b"old")
    said = r"TensorRT 10\.16\.0\.72 does not load the engine"
    with pytest.raises(BadModel, match=said), tensorrt_engine.open_engine(path, BuildOptions()):
        pass


def test_the_layers_are_what_the_inspector_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = recordings.until("load", "engine.num_io_tensors")
    begun = begun.replace("cudart.cudaSetDevice(0) -> 0", "")
    recordings.play(
        monkeypatch,
        tmp_path,
        begun,
        "engine.create_engine_inspector() -> inspector",
        "inspector.get_engine_information(LayerInformationFormat.JSON) -> '{\"Layers\": []}'",
    )
    assert library.describe_layers(b"engine", BuildOptions()) == '{\n "Layers": []\n}\n'


@pytest.mark.parametrize(
    ("answer", "said"),
    [("0, 1", None), ("0, 0", "no CUDA device"), ("35, None", "cudaErrorInsufficientDriver")],
)
def test_a_device_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str | None
) -> None:
    recordings.play(monkeypatch, tmp_path, f"cudart.cudaGetDeviceCount() -> {answer}")
    found = library.explain_missing_tensorrt()
    assert found == said or (said is not None and said in str(found))


def test_a_device_that_is_not_there_and_memory_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings.play(monkeypatch, tmp_path, "cudart.cudaSetDevice(3) -> 101")
    with pytest.raises(BackendMissing, match="device 3 cannot be used: cudaErrorInvalidDevice"):
        library.build_engine(tmp_path / "toy.onnx", BuildOptions(device=3))
    begun = recordings.until("run", "cudart.cudaMalloc")
    last = "cudart.cudaMalloc(32) -> 2, None\ncudart.cudaStreamDestroy(77) -> 0"
    recordings.play(monkeypatch, tmp_path, "load", begun, last, x=X)
    path = tmp_path / "toy.engine"
    path.write_bytes(b"engine")
    full = pytest.raises(OrtuneError, match="cudaErrorMemoryAllocation")
    with tensorrt_engine.open_engine(path, BuildOptions()) as session, full:
        session.run({"x": X})


def test_without_the_package_it_is_said() -> None:
    if library.is_tensorrt_installed():
        pytest.skip("TensorRT is installed here")
    assert "tensorrt-cu13" in str(library.explain_missing_tensorrt())
    with pytest.raises(BackendMissing, match="does not load"):
        library.import_tensorrt()


def test_a_call_that_is_not_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = recordings.play(monkeypatch, tmp_path, "Builder(logger) -> builder")
    log = library.make_logger(
        sys.modules["tensorrt"] if "tensorrt" in sys.modules else library.import_tensorrt()
    )
    builder = library.import_tensorrt().Builder(log)
    with pytest.raises(AssertionError, match="is not what comes next: the end"):
        builder.create_network(2)
    with pytest.raises(AssertionError, match="has no Builder"):
        builder.make_it_fast()
    with pytest.raises(AssertionError, match="create_network of 3 arguments"):
        builder.create_network(1, 2, 3)
    with pytest.raises(AssertionError, match="has no property"):
        builder.fp16 = True
    assert script.done() == []
