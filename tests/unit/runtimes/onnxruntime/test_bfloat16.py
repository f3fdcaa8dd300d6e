"""Models that take and give bfloat16 run like any other."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.unit import studies

from ortune.engine.load import load

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
    with load(path, on="cpu(threads=1)") as engine:
        found = engine(x=x, z=z)
    assert found["y"].dtype == ml_dtypes.bfloat16 and found["y"].flags.writeable
    assert np.array_equal(found["y"], np.concatenate([x, x], 1))
    assert np.array_equal(found["w"], np.zeros((rows, 3), np.float32))
