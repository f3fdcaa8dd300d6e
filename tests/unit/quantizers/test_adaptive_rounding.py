"""Adaptive rounding: less error than rounding to nearest, on the grid that int8-static finds."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.kit import cnn, images, mlp, rows, weights
from tests.unit.quantizing import model_of, normal, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.quantizers.adaptive_rounding import AdaptiveRounding, round_by_descent
from ortune.quantizers.common import grid as grids
from ortune.quantizers.fp16 import Fp16
from ortune.quantizers.int8_static import Int8Static

BOTH = [(cnn, images), (mlp, rows)]
TARGETS = [
    Int8Static(head=True, min_side=1),
    Int8Static(head=True, min_side=1, per_channel=False),
    Int8Static(head=True, min_side=1, reduce_range=True, weights="u8"),
]


def nearest(model: ir.Model, target: Int8Static) -> ir.Model:
    """The float model whose weights are what a target stores, each rounded by itself."""
    for node in [n for n in model.graph if n.op_type in ("Conv", "Gemm", "MatMul")]:
        array = edit.const_array(node.inputs[1])
        assert array is not None
        axis = 1 if node.op_type == "MatMul" else 0
        axes = axis if target.per_channel else None
        grid = grids.make_weight_grid(array, axes, reduce_range=target.reduce_range)
        value = edit.Editor(model.graph).add_constant(
            "near", grid.dequantize(grid.quantize(array))
        )
        node.replace_input_with(1, value)
    return model


@pytest.mark.parametrize(("make", "data"), BOTH)
@pytest.mark.parametrize("target", TARGETS)
def test_outputs_change_less_than_by_rounding_to_nearest(make, data, target) -> None:
    fresh = {"x": np.concatenate([one["x"] for one in data(4, seed=70)])}
    wanted = run(make(), fresh)[0]
    model = make()
    count = quantize(model, AdaptiveRounding(before=target), data())
    plain = snr(wanted, run(nearest(make(), target), fresh)[0])
    assert count == len(weights(make()))
    assert snr(wanted, run(model, fresh)[0]) > plain + 4


@pytest.mark.parametrize(("make", "data"), BOTH)
@pytest.mark.parametrize("target", TARGETS)
def test_int8_static_stores_the_very_integers(make, data, target) -> None:
    model = make()
    before = weights(model)
    quantize(model, AdaptiveRounding(before=target), data())
    chosen = weights(model)
    quantize(model, target, data())
    stored = [
        (
            edit.const_array(d.inputs[0]),
            edit.const_array(d.inputs[1]),
            edit.const_array(d.inputs[2]),
        )
        for node in model.graph
        if node.op_type in ("Conv", "Gemm", "MatMul")
        and (d := node.inputs[1].producer()) is not None
    ]
    assert len(stored) == len(chosen)
    changed = 0
    for old, new, (held, scale, zero) in zip(before, chosen, stored, strict=True):
        centred = held.astype(np.int32) - zero.astype(np.int32).reshape(-1)[0]
        centred = _narrow(centred, old.shape)
        axis = None if scale.ndim == 0 else list(old.shape).index(len(scale))
        axis = 1 if make is mlp and axis is not None else axis
        grid = grids.make_weight_grid(old, axis, reduce_range=target.reduce_range)
        np.testing.assert_array_equal(scale, grid.scale)
        np.testing.assert_array_equal(centred, grid.quantize(new))
        np.testing.assert_allclose(grid.dequantize(grid.quantize(new)), new, rtol=1e-6)
        changed += int((grid.quantize(old) != grid.quantize(new)).sum())
    assert changed > 50


def _narrow(weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Take the groups that int8-static joined into one apart again; the rest must be zero."""
    if weight.shape == shape:
        return weight
    count = weight.shape[1] // shape[1]
    rows, columns = shape[0] // count, shape[1]
    blocks = [
        weight[g * rows : (g + 1) * rows, g * columns : (g + 1) * columns] for g in range(count)
    ]
    assert sum(np.count_nonzero(b) for b in blocks) == np.count_nonzero(weight)
    return np.concatenate(blocks)


def test_descent_comes_close_to_the_best_of_all() -> None:
    draw = np.random.default_rng(3)
    lost = np.zeros(3)
    for _ in range(10):
        points = draw.standard_normal((40, 3)) @ draw.standard_normal((3, 6))
        second = (points.T @ points / 40 + 0.05 * np.eye(6))[None]
        values = draw.uniform(-6, 6, (1, 1, 6))
        fixed = np.zeros(values.shape, bool)
        fixed[0, 0, 2] = True
        found = round_by_descent(values, second, fixed, largest=7, sweeps=20)
        near = np.rint(values)
        steps = [(0,) if i == 2 else (-2, -1, 0, 1, 2) for i in range(6)]
        moves = np.array(list(itertools.product(*steps)))
        error = np.concatenate([near.reshape(1, -1), found.reshape(1, -1), near[0] + moves])
        error -= values.reshape(-1)
        losses = np.einsum("ni,ij,nj->n", error, second[0], error)
        assert found[0, 0, 2] == near[0, 0, 2]
        assert losses[1] <= losses[0] * (1 + 1e-6)
        lost += [losses[0], losses[1], losses[2:].min()]
    nearest_lost, found_lost, least = lost
    assert found_lost - least < 0.15 * (nearest_lost - least)


def test_integers_stay_on_the_grid_and_groups_apart() -> None:
    second = np.stack([np.full((3, 3), 5.0) + np.eye(3), np.eye(3)])
    values = np.tile([7.0, 6.6, 6.6], (2, 1)).reshape(2, 1, 3)
    found = round_by_descent(values, second, np.zeros(values.shape, bool), largest=7, sweeps=5)
    assert np.abs(found).max() <= 7
    np.testing.assert_array_equal(found[1, 0], [7, 7, 7])
    assert sorted(found[0, 0]) == [6, 7, 7]


def test_a_weight_that_a_table_shares_stays() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (int64[b,s] ids) => (float[b,s,40] y) {
      x = Gather(table, ids)
      turned = Transpose<perm = [1,0]>(table)
      h = MatMul(x, w)
      y = MatMul(h, turned)
    }"""
    made = model_of(text, {"table": normal(40, 32), "w": normal(32, 32, seed=1)})
    feeds = {"ids": np.arange(24).reshape(2, 12)}
    assert quantize(made, AdaptiveRounding(), [feeds]) == 1
    assert "others read them too" in edit.take_notes(made)
    held = edit.const_array(made.graph.initializers["table"])
    np.testing.assert_array_equal(held, normal(40, 32))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (AdaptiveRounding(before=Int8Static(smooth=0.75)), "changes the weights"),
        (AdaptiveRounding(before=Fp16()), "fp16 does not set"),
    ],
)
def test_steps_it_cannot_prepare_for_are_refused(step: Quantizer, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        quantize(mlp(), step, rows())


def test_layers_too_wide_are_refused_or_said() -> None:
    with pytest.raises(Refused, match="of 2 weights none"):
        quantize(mlp(), AdaptiveRounding(widest=16), rows())
    model = mlp()
    assert quantize(model, AdaptiveRounding(widest=32), rows()) == 1
    assert edit.take_notes(model) == "rounded to nearest: 1 of 2 weights"


def test_numbers_that_round_nothing_are_refused() -> None:
    with pytest.raises(BadSettings, match="sweeps=0"):
        AdaptiveRounding(sweeps=0)
    with pytest.raises(BadSettings, match=r"damping=0\.0"):
        AdaptiveRounding(damping=0.0)


def test_moments_that_rounding_left_indefinite_are_damped_more() -> None:
    rng = np.random.default_rng(0)
    second = np.cov(rng.standard_normal((8, 40)), rowvar=False)[None]
    second[:, 3, 3] -= 0.5
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(second)
    wanted = rng.standard_normal((1, 6, 40)) * 30
    found = round_by_descent(wanted, second, np.zeros(wanted.shape, bool), largest=127, sweeps=4)
    assert np.abs(found - wanted).max() < 20
    assert np.array_equal(found, np.rint(found))
