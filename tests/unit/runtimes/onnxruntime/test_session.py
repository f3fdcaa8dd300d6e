"""A session of given bytes is that of the file, with its external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.model.io.protobuf import fixed
from ortune.runtimes.onnxruntime import session as ort
from ortune.runtimes.openvino import plugin

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
    made = ort.options(1, "all", verbose=False)
    with ort.session(path, ort.options(1, "all", verbose=False)) as plain:
        assert len(plain.inner.get_overridable_initializers()) == 1
        wanted = plain.run({"x": X})["y"]
    with ort.session(path, made, content=fixed(path)) as found:
        assert not found.inner.get_overridable_initializers()
        np.testing.assert_array_equal(found.run({"x": X})["y"], wanted)


@pytest.mark.skipif(plugin.missing() is not None, reason="the OpenVINO plug-in has no device")
def test_the_openvino_plug_in_takes_overridable_weights(path: Path) -> None:
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    with plugin.session(path, 1, options, verbose=False) as found:
        assert found.run({"x": X})["y"].shape == (1, 32)
