"""Models compiled ahead by the runtime's own compiler: by the CPU none, by OpenVINO for real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.unit import studies

from ortune.backends import openvino
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime.engine_cache import (
    CompiledNode,
    CompilingBackend,
    compile_model,
    describe_build_environment,
    list_compiled_nodes,
)
from ortune.backends.tensorrt import Tensorrt
from ortune.backends.torch import Torch
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.core.errors import BackendMissing, BadModel

PLUGGED = pytest.mark.skipif(
    openvino.explain_missing_plugin() is not None,
    reason=f"OpenVINO's plug-in: {openvino.explain_missing_plugin()}",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return studies.write_model(tmp_path / "toy.onnx", studies.MODEL)


def test_the_cpu_compiles_nothing_and_leaves_no_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    with pytest.raises(BackendMissing, match=r"compiled no node of toy\.onnx"):
        compile_model(model, onnxruntime.SessionOptions(), out, "CPUExecutionProvider")
    assert not out.exists()


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x0a\xff")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(BadModel, match=r"CPU does not compile bad\.onnx"):
        compile_model(tmp_path / "bad.onnx", options, tmp_path / "out.onnx", "CPU")
    with pytest.raises(BadModel, match=r"bad\.onnx is no compiled model"):
        list_compiled_nodes(tmp_path / "bad.onnx")


def test_compiled_nodes_are_read(model: Path, tmp_path: Path) -> None:
    assert list_compiled_nodes(model) == []
    proto = onnx.load(model)
    for held in (
        {"source": "A", "embed_mode": 1, "ep_cache_context": b"x"},
        {"source": "B", "embed_mode": 0, "ep_cache_context": b"../x.bin"},
        {"source": "B", "embed_mode": 0, "main_context": 0},
        {"source": "C", "embed_mode": 0, "main_context": 0, "ep_cache_context": b"x.bin"},
        {},
    ):
        node = onnx.helper.make_node("EPContext", ["x"], [], domain="com.microsoft", **held)
        proto.graph.node.append(node)
    onnx.save(proto, tmp_path / "made.onnx")
    assert list_compiled_nodes(tmp_path / "made.onnx") == [
        CompiledNode("A", True),
        CompiledNode("B", False),
        CompiledNode("B", True),
        CompiledNode("C", False),
        CompiledNode("", True),
    ]


def test_what_it_is_made_for_names_releases_and_the_device() -> None:
    cpu = next(one for one in onnxruntime.get_ep_devices() if one.device.type.name == "CPU")
    found = describe_build_environment(
        "P", cpu, "numpy", "no-such-package", more={"profile": "x:1"}
    )
    assert found["provider"] == "P" and found["onnxruntime"] == onnxruntime.__version__
    assert found["numpy"] == np.__version__ and "no-such-package" not in found
    assert found["profile"] == "x:1" and found["device"] and len(found["instruction sets"]) == 16


@PLUGGED
def test_openvino_compiles_and_opens(model: Path, tmp_path: Path) -> None:
    backend, out = Openvino(threads=1), tmp_path / "out.onnx"
    assert isinstance(backend, CompilingBackend)
    backend.compile(model, out)
    assert list_compiled_nodes(out) == [CompiledNode(openvino.PROVIDER, True)]
    feed = {"x": np.array([[-5, 0, 1, 2]], np.float32)}
    with backend.open(model) as plain, backend.open(out) as compiled:
        assert compiled.placement() == {openvino.PROVIDER: 1}
        np.testing.assert_array_equal(compiled.run(feed)["y"], plain.run(feed)["y"])
    assert backend.compiled_for()["onnxruntime-ep-openvino"]


@PLUGGED
def test_openvinos_compiled_model_runs_out_of_a_bundle(tmp_path: Path) -> None:
    study = studies.study(tmp_path, backend=Openvino(threads=1))
    with load_engine(pack(study, tmp_path / "toy.ortune", compiled=True)) as engine:
        assert engine.compiled and not engine.fallback
        found = engine(x=np.array([[-5, 0, 1, 2]], np.float32))
    np.testing.assert_array_equal(found["y"], [[0, 2, 4, 6]])


def test_backends_that_compile_say_so() -> None:
    assert isinstance(Tensorrt(), CompilingBackend) and isinstance(Openvino(), CompilingBackend)
    assert not isinstance(Cpu(), CompilingBackend) and not isinstance(Torch(), CompilingBackend)
    assert Tensorrt().compiled_for()["provider"] == "TensorrtExecutionProvider"
