"""A model file's identity, told without its weights in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.core.errors import BadModel
from ortune.graph.io import file
from ortune.graph.io.protobuf import read_identity

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  y = If (c) <then_branch = t () => (float[N,4] p) { p = Relu(a) },
              else_branch = e () => (float[N,4] q) { b = Neg(a) q = Abs(b) }>
}
"""


def test_the_digest_is_the_models_and_all_nodes_count(tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    assert read_identity(path) == (file.compute_digest(path), 5)


def test_external_data_are_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    model = onnx.parser.parse_model(TEXT)
    weights = onnx.numpy_helper.from_array(np.arange(4096, dtype=np.float32), "big")
    model.graph.initializer.append(weights)
    onnx.save(model, path, save_as_external_data=True, location="two.data")
    first = read_identity(path)
    assert first == (file.compute_digest(path), 5)
    data = bytearray((tmp_path / "two.data").read_bytes())
    data[-1] ^= 1
    (tmp_path / "two.data").write_bytes(data)
    assert read_identity(path)[0] not in (first[0], "") and read_identity(path)[
        0
    ] == file.compute_digest(path)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    for content in (b"", b"not a model", b"\x0a\xff"):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(BadModel, match=r"x\.onnx cannot be read"):
            read_identity(tmp_path / "x.onnx")
    with pytest.raises(BadModel, match="cannot be read"):
        read_identity(tmp_path / "none.onnx")
