"""calibrate as a function: branches that no sample took, and builds from what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from tests.unit.quantizing import normal

from ortune.analysis.calibration_quality.calibrate import calibrate
from ortune.core.step import Recipe
from ortune.quantizers.calibration import reuse
from ortune.quantizers.int8_static import Int8Static
from ortune.search.recipe.build import build

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,32] x, bool up) => (float[1,32] y) {
    a = MatMul(x, w)
    r = Relu(a)
    y = If (up) <
        then_branch = yes () => (float[1,32] one) { p = Relu(r)  one = MatMul(p, v) },
        else_branch = no () => (float[1,32] two) { q = Neg(r)  two = MatMul(q, v) }
    >
}"""


def _model(folder: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    for name, seed in (("w", 0), ("v", 1)):
        array = normal(32, 32, seed=seed)
        if name == "w":
            array[:, 5] = 0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def _data(folder: Path, count: int) -> Path:
    (folder / "data").mkdir()
    for k in range(count):
        np.savez(folder / "data" / f"{k:02}.npz", x=normal(1, 32, seed=k + 2), up=np.array(True))
    return folder / "data"


def test_a_branch_that_no_sample_took_is_named_and_not_asked_for_again(tmp_path: Path) -> None:
    model = _model(tmp_path)
    found = calibrate(model, data=_data(tmp_path, 8))
    assert "q" in found.unanswered
    assert {tensor.name for tensor in found.tensors} >= {"x", "p"}
    unseen = {one.tensor: one.op for one in found.idle if not one.seen}
    assert unseen == {"q": "Neg"}
    known, _ = reuse.load_ranges(found.save(tmp_path / "ranges.json"), model)
    out = tmp_path / "out.onnx"
    assert build(model, Recipe("r", (Int8Static(),)), out, ranges=known).changed


def test_inactive_channels_are_counted(tmp_path: Path) -> None:
    found = calibrate(_model(tmp_path), data=_data(tmp_path, 8))
    zero = {one.tensor: one.channels for one in found.idle if one.channels}
    assert 5 in zero["p"]
    assert found.stability.enough is not None
    assert all(len(tensor.halves) == 2 for tensor in found.tensors)


def test_few_samples_have_ranges_and_no_verdict(tmp_path: Path) -> None:
    found = calibrate(_model(tmp_path), data=_data(tmp_path, 8), samples=4)
    assert found.samples == 4
    assert found.stability.enough is None
    assert all(tensor.apart is None for tensor in found.tensors)
    assert "too few" in found.stability.why
