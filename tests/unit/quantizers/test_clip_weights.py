"""Weight clipping: the bound of least rounding error, found on the grid that follows."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.graph.ir import edit
from ortune.quantizers.clip_weights import ClipWeights
from ortune.quantizers.common import grid as grids
from ortune.quantizers.int8_static import Int8Static

SIDE = 400
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,400] x) => (float[b,400] y) {
  h = MatMul(x, w)
  y = Add(h, b)
}"""
TENSOR = Int8Static(per_channel=False)


def model(weight: np.ndarray) -> ir.Model:
    return model_of(TEXT, {"w": weight, "b": normal(SIDE, seed=4)})


def spiked() -> np.ndarray:
    """Normal weights, and one three times as large as the largest of the others."""
    values = normal(SIDE, SIDE)
    values[3, 5] = np.abs(values).max() * 3
    return values


def stored(made: ir.Model) -> np.ndarray:
    found = edit.const_array(next(n for n in made.graph if n.op_type == "MatMul").inputs[1])
    assert found is not None
    return found


def lost(old: np.ndarray, new: np.ndarray, axis: int | None) -> float:
    """Squared error that the integer grid leaves."""
    grid = grids.make_weight_grid(new, axis)
    return float(((grid.dequantize(grid.quantize(new)) - old) ** 2).sum())


def test_no_bound_of_the_grid_is_better() -> None:
    old = spiked()
    made = model(old)
    assert quantize(made, ClipWeights(before=TENSOR)) == 1
    top = np.abs(old).max()
    tried = [lost(old, np.clip(old, -s * top, s * top), None) for s in np.linspace(0.5, 1, 26)]
    assert lost(old, stored(made), None) <= min(tried) * 1.0001 < 0.9 * tried[-1]
    assert int(np.argmin(tried)) not in (0, 25)


def test_every_channel_has_its_own_bound() -> None:
    old = normal(SIDE, SIDE)
    old[0, 0] = 9
    old[:, 7] = 0
    made = model(old)
    assert quantize(made, ClipWeights(bounds=101)) == 1
    top = np.maximum(np.abs(old).max(axis=0), 1e-6)
    share = np.abs(stored(made)).max(axis=0) / top
    assert len(set(share.round(3))) > 2 and share[0] < 1
    each = [lost(old[:, i : i + 1], old[:, i : i + 1], 1) for i in range(SIDE)]
    found = [lost(old[:, i : i + 1], stored(made)[:, i : i + 1], 1) for i in range(SIDE)]
    assert all(b <= a * 1.0001 for a, b in zip(each, found, strict=True))
    assert sum(found) < sum(each)


def test_with_data_a_weight_counts_by_its_input() -> None:
    feeds = [{"x": normal(300, SIDE, seed=7)}]
    feeds[0]["x"][:, 3] *= 200
    blind, seeing = model(spiked()), model(spiked())
    quantize(blind, ClipWeights(before=TENSOR), feeds)
    with pytest.raises(Refused, match="none of 1 weight"):
        quantize(seeing, ClipWeights(before=TENSOR, weighted=True), feeds)
    wanted = run(model(spiked()), feeds[0])[0]
    assert snr(wanted[:, 5], run(blind, feeds[0])[0][:, 5]) < 20


def test_with_data_biases_take_up_the_mean() -> None:
    feeds = [{"x": normal(300, SIDE, seed=7) + 0.5}]
    feeds[0]["x"][:, 3] = 0.01
    made = model(spiked())
    quantize(made, ClipWeights(before=TENSOR, weighted=True), feeds)
    difference = run(made, feeds[0])[0] - run(model(spiked()), feeds[0])[0]
    clipped = np.abs(spiked()).max() - np.abs(stored(made)).max()
    assert clipped > 1
    assert np.abs(difference.mean(axis=0)).max() < 1e-4 * clipped


def test_weights_that_need_no_clipping_are_refused() -> None:
    flat = np.where(normal(SIDE, SIDE) > 0, np.float32(1), np.float32(-1))
    with pytest.raises(Refused, match="none of 1 weight"):
        quantize(model(flat), ClipWeights())


def test_bounds_that_clip_nothing_are_refused() -> None:
    with pytest.raises(BadSettings, match=r"least=1\.0"):
        ClipWeights(least=1.0)
    with pytest.raises(BadSettings, match="bounds=1"):
        ClipWeights(bounds=1)
