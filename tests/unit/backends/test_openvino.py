"""OpenVINO's devices: what each is told and refuses, and that none stands in for another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.backends import openvino
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.openvino import native
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.measurement.workloads.latency import Latency

GPU, NPU = Openvino(device="gpu"), Openvino(device="npu", precision="f16")
AUTO = Openvino(device="auto", threads=1)
FACTS = Facts({"Conv": 3}, 3, 1, 1, {}, 17, 8, (), ())
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64] x) => (float[1,64] y) { y = Relu(x) }"""
needs_openvino = pytest.mark.skipif(not native.is_openvino_installed(), reason="needs openvino")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


SEVERAL_NAMES = """<ir_version: 9, opset_import: ["": 17]>
g (float[2,3] x) => (float[2,3] z, float[2,3] y, float[2,3] n, float[2,3] same, float[2,3] w) {
  m = Relu(x)
  z = Identity(m)
  y = Identity(m)
  n = Neg(m)
  same = Identity(x)
  a = Abs(n)
  w = Cast<to = 1>(a)
}"""


@needs_openvino
def test_outputs_have_the_names_of_the_file(tmp_path: Path) -> None:
    """OpenVINO knows a tensor by all names that operators without effect give it."""
    path = tmp_path / "several.onnx"
    onnx.save(onnx.parser.parse_model(SEVERAL_NAMES), path)
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    answers = []
    for backend in (Cpu(), Openvino()):
        with backend.open(path) as session:
            answers.append(session.run({"x": x}))
    expected, found = answers
    assert list(found) == list(expected) == ["z", "y", "n", "same", "w"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_the_cpu_is_the_default_and_is_not_spelled() -> None:
    """What stored runs and bundles call a plan stays its name."""
    assert str(Openvino(precision="bf16")) == "openvino(precision=bf16)"
    assert "device" not in codec.encode(Openvino())
    assert codec.encode(GPU)["device"] == "gpu"
    for backend in Openvino.tried():
        assert codec.decode(Backend, codec.encode(backend)) == backend
    assert Openvino(threads=2).build_properties() == {
        "INFERENCE_NUM_THREADS": "2",
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        (GPU, {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}),
        (
            Openvino(device="gpu", precision="f16", hint="throughput", streams=2),
            {
                "INFERENCE_PRECISION_HINT": "f16",
                "PERFORMANCE_HINT": "THROUGHPUT",
                "NUM_STREAMS": "2",
            },
        ),
        (NPU, {"PERFORMANCE_HINT": "LATENCY"}),
        (
            AUTO,
            {
                "INFERENCE_NUM_THREADS": "1",
                "INFERENCE_PRECISION_HINT": "f32",
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_STARTUP_FALLBACK": "NO",
                "ENABLE_RUNTIME_FALLBACK": "NO",
            },
        ),
    ],
    ids=str,
)
def test_a_device_is_told_what_it_knows(backend: Openvino, told: dict[str, str]) -> None:
    assert backend.build_properties() == told


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("openvino(device=gpu, pinning=on)", "pinning has no effect"),
        ("openvino(device=auto, cores=performance)", "cores has no effect"),
        ("openvino(device=auto, streams=2)", "streams has no effect"),
        ("openvino(device=gpu, precision=bf16)", "GPU device does not compute in bf16"),
        ("openvino(device=npu)", "NPU device does not compute in f32"),
        ("openvino(device=tpu)", "device"),
    ],
)
def test_what_a_device_does_not_have_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        parse_plugin(Backend, text)


def test_what_was_never_run_says_so() -> None:
    assert Openvino().unverified == ""
    assert (GPU.runs_on, GPU.unverified) == ("gpu", "never run on a GPU here")
    assert (NPU.runs_on, NPU.unverified) == ("npu", "never run on an NPU here")
    assert AUTO.runs_on == "cpu"
    assert "auto takes one" in AUTO.unverified
    assert [one.device for one in Openvino.tried()] == ["cpu", "gpu", "npu", "auto"]


def test_a_gpu_is_tried_in_f16_and_by_its_own_settings() -> None:
    offered = Capabilities(effective_cpus=4)
    found = [str(one) for one in GPU.variants(FACTS, Latency(), offered)]
    assert found == ["openvino(device=gpu, precision=f16)", "openvino(device=gpu)"]
    assert list(NPU.variants(FACTS, Latency(), offered)) == [NPU]
    for backend in (GPU, NPU, AUTO):
        beside = [one for some in backend.coordinates(FACTS, offered).values() for one in some]
        assert beside and all(one.device == backend.device for one in beside)
        assert not backend.portable


@needs_openvino
@pytest.mark.parametrize("backend", [GPU, NPU], ids=str)
def test_a_device_that_is_not_there_is_refused_and_never_replaced(
    backend: Openvino, model: Path
) -> None:
    reason = backend.missing()
    if reason is None:
        pytest.skip("the device is here")
    state = backend.state(reason)
    assert state in ("no device", "not loadable")
    assert backend.device.upper() in reason and "driver" in reason
    with pytest.raises(OrtuneError) as caught, backend.open(model):
        pass
    assert isinstance(caught.value, (BackendMissing, BadModel))


@needs_openvino
def test_auto_computes_where_it_says(model: Path) -> None:
    """Its runtime takes unknown properties without a word: they are refused before."""
    assert AUTO.missing() is None
    with AUTO.open(model) as session:
        assert set(session.placement()) <= {"OpenVINO", "OpenVINO GPU", "OpenVINO GPU.0"}
        x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
    assert all(names for names in AUTO.takes(model).values())
    with pytest.raises(BadSettings, match="AUTO device has no property 'NOSUCH'"):
        Openvino(device="auto", config=("NOSUCH=1",)).missing()


@needs_openvino
def test_auto_records_its_layers(model: Path, tmp_path: Path) -> None:
    with AUTO.record(model, tmp_path) as session:
        for _ in range(5):
            session.run({"x": np.ones((1, 64), np.float32)})
        found = session.recorded(5)
    assert {node.provider for node in found.nodes} == set(session.placement())


def test_without_either_package_each_device_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "explain_missing_device", lambda device: "pip install openvino")
    monkeypatch.setattr(native, "is_openvino_installed", lambda: False)
    monkeypatch.setattr(
        openvino, "explain_missing_plugin", lambda device: f"pip install {openvino.PACKAGE}"
    )
    for backend in Openvino.tried():
        reason = backend.missing()
        assert reason == f"pip install {openvino.PACKAGE}"
        assert backend.state(reason) == "not installed"
