"""A session of given bytes is that of the file, with its external data."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.unit import studies

from ortune.backends import openvino
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime import checks, messages
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.bundle.engine.load import load_engine
from ortune.graph.io.protobuf import drop_initializer_inputs

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64] x, float[64,32] w) => (float[1,32] y) { y = MatMul(x, w) }"""
X = np.ones((1, 64), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with an overridable weight, which lies in a file beside it."""
    proto = onnx.parser.parse_model(TEXT)
    weight = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    return tmp_path / "m.onnx"


def test_a_fixed_model_runs_without_overridable_weights(path: Path) -> None:
    made = ort.make_session_options(1, "all", verbose=False)
    with ort.open_session(path, ort.make_session_options(1, "all", verbose=False)) as plain:
        assert len(plain.inner.get_overridable_initializers()) == 1
        wanted = plain.run({"x": X})["y"]
    with ort.open_session(path, made, content=drop_initializer_inputs(path)) as found:
        assert not found.inner.get_overridable_initializers()
        np.testing.assert_array_equal(found.run({"x": X})["y"], wanted)


@pytest.mark.skipif(
    openvino.explain_missing_plugin() is not None, reason="the OpenVINO plug-in has no device"
)
def test_the_openvino_plug_in_takes_overridable_weights(path: Path) -> None:
    with Openvino(threads=1).open(path) as found:
        assert found.run({"x": X})["y"].shape == (1, 32)


MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (bfloat16[N,3] x, float[N,3] z) => (bfloat16[N,6] y, float[N,3] w) {
    y = Concat<axis: int = 1>(x, x)
    w = Relu(z)
}"""


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_bfloat16_goes_in_and_comes_out(tmp_path: Path, rows: int) -> None:
    path = studies.write_model(tmp_path / "m.onnx", MODEL)
    wide = np.random.default_rng(0).standard_normal((rows, 6)).astype(ml_dtypes.bfloat16)
    x, z = wide[:, ::2], np.full((rows, 3), -1, np.float32)
    with load_engine(path, on="cpu(threads=1)") as engine:
        found = engine(x=x, z=z)
    assert found["y"].dtype == ml_dtypes.bfloat16 and found["y"].flags.writeable
    assert np.array_equal(found["y"], np.concatenate([x, x], 1))
    assert np.array_equal(found["w"], np.zeros((rows, 3), np.float32))


def test_an_affinity_gives_each_worker_a_cpu_that_may_be_used() -> None:
    usable = (3, 5, 7)
    assert checks.affinity_of_workers(3, usable) == "6;8"
    assert checks.parse_affinity("6;7-8") == [{5}, {6, 7}]
    assert checks.affinity_of_workers(4, usable) == checks.affinity_of_workers(1, usable) == ""


def test_without_a_library_the_answer_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "list_libraries", tuple)
    with pytest.warns(UserWarning, match=r"session\.x could not be checked"):
        checks.demand_session_keys(["session.x"])


@pytest.mark.parametrize(
    "name", ["onnxruntime_pybind11_state.pyd", "onnxruntime.dll", "libonnxruntime.1.31.1.dylib"]
)
def test_libraries_of_other_systems_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "someruntime" / "capi"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / name).write_bytes(b"\0session.known\0session.known.longer\0")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = checks.list_libraries("someruntime")
    assert checks.has_word(found, "session.known")
    assert not checks.has_word(found, "session.know")
    assert not checks.has_word(found, "known.longer")


FAILED = (
    "\x1b[1;31m2026-11-23 07:40:37.231127928 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 "
    "operator()] /onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 "
    "onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : "
    "Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: "
    "cannot open shared object file: No such file or directory\n\x1b[m\n"
)
"""Recorded of onnxruntime-gpu 1.31.1 without CUDA's libraries."""
MEMCPY = (
    "2026-11-23 07:40:37.2 [W:onnxruntime:, transformer_memcpy.cc:111 ApplyImpl] 6 Memcpy nodes "
    "are added to the graph main_graph for CUDAExecutionProvider.\n"
)


def write(text: str) -> None:
    os.write(2, text.encode())


def test_the_cause_is_found_behind_harmless_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with messages.capture_log() as log:
        write(MEMCPY + FAILED)
    assert log.reason.startswith("Failed to load library /x/libonnxruntime_providers_cuda.so")
    assert len(log.lines) > len(log.real) > 0, "the harmless one is explained"
    err = capfd.readouterr().err
    assert "libcublasLt.so.13" in err and "Memcpy" not in err


def test_what_is_verbose_passes(capfd: pytest.CaptureFixture[str]) -> None:
    with messages.capture_log(verbose=True) as log:
        write(MEMCPY)
    assert log.text == "" and "Memcpy" in capfd.readouterr().err


def test_stderr_is_given_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), messages.capture_log():
        raise ValueError("broken")
    write("after\n")
    assert capfd.readouterr().err == "after\n"


@pytest.mark.parametrize(
    "line",
    [
        "CUDA failure 2: out of memory",
        "TensorRT EP could not deserialize engine from cache",
        "[E] Error Code 4: API Usage Error (Network has dynamic or shape inputs)",
    ],
)
def test_errors_are_kept(line: str) -> None:
    assert messages.explain_line(line) == ""
