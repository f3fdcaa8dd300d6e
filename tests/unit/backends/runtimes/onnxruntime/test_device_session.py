"""Bound buffers, on the CPU's own memory; what a device adds is in tests/gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortune.backends.runtimes.onnxruntime import device_session, plug_in
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.core.session import DeviceTimed

CPU = "CPUExecutionProvider"
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] x) => (float[N, 3] y, int64[M] at) {
  y = Relu(x)
  flat = ReduceSum<keepdims = 0>(y)
  place = NonZero(y)
  zero = Constant<value_ints = [0]>()
  row = Gather(place, zero)
  minus = Constant<value_ints = [-1]>()
  at = Reshape(row, minus)
}
"""
WRONG = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 2] x) => (float[N, 2] y) { y = Concat<axis = 0>(x, x) }
"""
FIXED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }
"""
TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (string[N] x) => (string[N] y) { y = Identity(x) }
"""


def write(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def opened(path: Path, **how: Any) -> Any:
    made = ort.make_session_options(1, "basic", verbose=False)
    return device_session.open_device_session(path, made, [(CPU, {})], device="cpu", **how)


def test_runs_of_every_shape_are_the_plain_ones(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    rng = np.random.default_rng(0)
    with opened(path) as bound, opened(path, io_binding=False) as plain:
        assert isinstance(bound, DeviceTimed) and not isinstance(plain, DeviceTimed)
        for rows in [2, 5, 2, 1, *range(1, 24)]:
            feeds = {"x": rng.standard_normal((rows, 3)).astype(np.float32)}
            for name, array in plain.run(feeds).items():
                np.testing.assert_array_equal(bound.run(feeds)[name], array)
        assert bound.placement() == plain.placement()


def test_answers_are_the_callers_own(tmp_path: Path) -> None:
    with opened(write(tmp_path, MODEL)) as bound:
        first = bound.run({"x": np.ones((2, 3), np.float32)})["y"]
        bound.run({"x": np.zeros((2, 3), np.float32)})
    assert first.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_computing_is_apart_from_copying(tmp_path: Path) -> None:
    with opened(write(tmp_path, MODEL)) as bound:
        feeds = {"x": np.ones((2, 3), np.float32)}
        bound.stage(feeds)
        feeds["x"][:] = -1
        bound.compute()
        bound.compute()
        assert bound.run({"x": np.ones((2, 3), np.float32)})["y"].sum() == 6


def test_a_file_that_declares_a_wrong_size_runs(tmp_path: Path) -> None:
    with opened(write(tmp_path, WRONG)) as bound:
        for rows in (1, 2, 1):
            assert bound.run({"x": np.ones((rows, 2), np.float32)})["y"].shape == (2 * rows, 2)


def test_wrong_inputs_are_refused_as_without_buffers(tmp_path: Path) -> None:
    path = write(tmp_path, FIXED)
    with opened(path) as bound:
        for wrong in (np.ones((2, 3)), np.ones((3, 3), np.float32)):
            with pytest.raises(Exception, match=r"(?i)unexpected|invalid|dimension"):
                bound.run({"x": wrong})
        with pytest.raises(Exception, match=r"(?i)input|x"):
            bound.run({"z": np.ones((2, 3), np.float32)})
        assert bound.run({"x": np.ones((2, 3), np.float32)})["y"].sum() == 6


def test_texts_take_the_plain_way(tmp_path: Path) -> None:
    with opened(write(tmp_path, TEXT)) as found:
        assert found.run({"x": np.array(["a", "b"], object)})["y"].tolist() == ["a", "b"]


def test_a_cuda_graph_says_what_is_in_its_way(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    with pytest.raises(BadSettings, match=r"input 'x' has no fixed shape \(Nx3\)") as caught:
        opened(path, graph="enable_cuda_graph").__enter__()
    assert "leave cuda_graph out" in caught.value.fix


def test_nodes_elsewhere_and_control_flow_are_named() -> None:
    class Value:
        name, shape = "x", [2, 3]

    class Inner:
        def get_inputs(self) -> list[Any]:
            return [Value()]

    class Opened:
        inner = Inner()

        def list_assigned_ops(self) -> dict[str, list[tuple[str, str]]]:
            shapes = [(f"Shape_{n}", "Shape") for n in range(7)]
            return {"CUDA": [("Conv_0", "Conv"), ("If_1", "If")], "CPU": shapes}

    found = device_session.find_graph_obstacles(Opened(), "CUDA")  # type: ignore[arg-type]
    assert found == (
        "control flow: If_1",
        "7 nodes on CPU: Shape_0, Shape_1, Shape_2, Shape_3, Shape_4 and 2 more",
    )


def test_a_provider_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Stock onnxruntime drops a provider that it does not have, and runs on the CPU."""
    path = write(tmp_path, FIXED)
    made = ort.make_session_options(1, "basic", verbose=False)
    chain = [(plug_in.CUDA, {"device_id": "0"})]
    with pytest.raises((BackendMissing, BadModel), match="CUDAExecutionProvider") as caught:
        device_session.open_device_session(path, made, chain, device="cuda").__enter__()
    assert isinstance(caught.value, BackendMissing)
    assert len(str(caught.value).splitlines()) == 2
    assert plug_in.probe_provider(plug_in.CUDA).state == "not installed"
