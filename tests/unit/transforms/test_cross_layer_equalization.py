"""Equalization keeps the function and makes both weights of a pair spread alike."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.kit import cnn, images, mlp, rows, weights
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import BadSettings
from ortune.graph.analysis.facts import read_facts
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.cross_layer_equalization import CrossLayerEqualization

STEP = CrossLayerEqualization()
HEAD = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,4,8,8] x) => (float[b,8,h,w] y) {"""
BETWEEN = {
    "nothing": "y = Conv(p, w2)",
    "relu": "a = Relu(p) y = Conv(a, w2)",
    "leaky": "a = LeakyRelu<alpha = 0.2>(p) y = Conv(a, w2)",
    "pools": "a = MaxPool<kernel_shape = [2,2]>(p) c = AveragePool<kernel_shape = [2,2]>(a)"
    " y = Conv(c, w2)",
    "global": "a = GlobalAveragePool(p) y = Conv(a, w2)",
    "grouped": "a = Relu(p) y = Conv<group = 2>(a, w2g)",
}
LEFT = {
    "clip": "a = Clip(p, zero, six) y = Conv(a, w2)",
    "curved": "a = Sigmoid(p) y = Conv(a, w2)",
    "read twice": "a = Conv(p, w2) y = Add(a, p)",
    "shifted": "a = Add(p, six) y = Conv(a, w2)",
    "indices": "a, at = MaxPool<kernel_shape = [2,2]>(p) y = Conv(a, w2)",
    "a made weight": "v = Identity(w2) u = Abs(v) y = Conv(p, u)",
}


def model(between: str) -> ir.Model:
    uneven = np.geomspace(0.02, 4, 8).astype(np.float32)[:, None, None, None]
    return model_of(
        f"{HEAD} p = Conv(x, w1, b1) {between} }}",
        {
            "w1": normal(8, 4, 3, 3, seed=1) * uneven,
            "b1": normal(8, seed=2),
            "w2": normal(8, 8, 1, 1, seed=3),
            "w2g": normal(8, 4, 1, 1, seed=4),
            "zero": np.float32(0),
            "six": np.float32(6),
        },
    )


def ranges(made: ir.Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest weight of the first's outputs and of the second's inputs."""
    first, second = weights(made)[:2]
    groups = 8 // second.shape[1]
    split = np.abs(second).reshape(groups, 8 // groups, second.shape[1])
    return np.abs(first).max(axis=(1, 2, 3)), split.max(axis=1).reshape(-1)


@pytest.mark.parametrize("name", BETWEEN)
def test_pairs_are_made_alike_and_outputs_stay(name: str) -> None:
    made, feeds = model(BETWEEN[name]), {"x": normal(2, 4, 8, 8, seed=9)}
    before = ranges(made)
    assert STEP.apply(made) == 1
    after = ranges(made)
    np.testing.assert_allclose(after[0], after[1], rtol=1e-5)
    np.testing.assert_allclose(after[0] ** 2, before[0] * before[1], rtol=1e-5)
    assert snr(run(model(BETWEEN[name]), feeds)[0], run(made, feeds)[0]) > 120
    assert ops(made) == ops(model(BETWEEN[name]))
    assert STEP.apply(made) == 0


@pytest.mark.parametrize("name", LEFT)
def test_what_factors_do_not_pass_is_left(name: str) -> None:
    made = model(LEFT[name])
    assert STEP.apply(made) == 0
    np.testing.assert_array_equal(weights(made)[0], weights(model(LEFT[name]))[0])


def test_weights_that_are_not_theirs_alone_are_copied() -> None:
    text = "a = Relu(p) q = Conv(a, w2) r = Relu(q) s = Conv(r, w2) y = Conv(s, w2)"
    made, feeds = model(text), {"x": normal(2, 4, 8, 8, seed=9)}
    assert STEP.apply(made) == 3
    assert snr(run(model(text), feeds)[0], run(made, feeds)[0]) > 110


@pytest.mark.parametrize(("make", "data", "pairs"), [(cnn, images, 3), (mlp, rows, 1)])
def test_chains_with_depthwise_and_products(make, data, pairs: int) -> None:
    made, feeds = make(), data(1, seed=80)[0]
    assert STEP.apply(made) == pairs
    assert snr(run(make(), feeds)[0], run(made, feeds)[0]) > 110
    first, second = weights(made)[:2]
    one = np.abs(first).max(axis=(1, 2, 3)) if first.ndim == 4 else np.abs(first).max(axis=0)
    two = np.abs(second).reshape(len(one), -1).max(axis=1)
    np.testing.assert_allclose(one, two, rtol=0.01)


def test_one_step_a_tensor_becomes_fine_enough() -> None:
    target, fresh = Int8Static(per_channel=False, head=True, min_side=1), images(1, seed=80)[0]
    wanted = run(cnn(), fresh)[0]
    plain, made = cnn(), cnn()
    STEP.apply(made)
    quantize(plain, target, images())
    quantize(made, target, images())
    assert snr(wanted, run(made, fresh)[0]) > snr(wanted, run(plain, fresh)[0]) + 3


def test_a_dead_channel_and_the_largest_factor() -> None:
    made, feeds = model(BETWEEN["relu"]), {"x": normal(2, 4, 8, 8, seed=9)}
    first = made.graph.initializers["w1"]
    array = weights(made)[0]
    array[0], array[1] = 0, array[1] * 1e-7
    first.const_value = ir.tensor(array, name="w1")
    wanted = run(made, feeds)[0]
    assert CrossLayerEqualization(most=10).apply(made) == 1
    assert snr(wanted, run(made, feeds)[0]) > 110
    assert np.abs(weights(made)[0][1]).max() <= np.abs(array[1]).max() * 10.001


def test_it_applies_where_two_layers_are() -> None:
    found = read_facts(cnn())
    assert STEP.applies(found)
    assert not STEP.applies(replace(found, ops={"Conv": 1, "Relu": 9}))


def test_numbers_that_change_nothing_are_refused() -> None:
    with pytest.raises(BadSettings, match="sweeps=0"):
        CrossLayerEqualization(sweeps=0)
    with pytest.raises(BadSettings, match=r"most=1\.0"):
        CrossLayerEqualization(most=1.0)
