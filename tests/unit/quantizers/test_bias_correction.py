"""Bias correction: the mean error of rounded weights is gone, nothing else changes."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.kit import cnn, images, mlp, rows, weights
from tests.unit.quantizing import model_of, normal, observe, ops, quantize, run

from ortune.core.errors import Refused
from ortune.graph.ir import edit
from ortune.quantizers.adaptive_rounding import AdaptiveRounding
from ortune.quantizers.bias_correction import BiasCorrection
from ortune.quantizers.int8_static import Int8Static

GEMM = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,24] x) => (float[b,20] y) {
  y = Gemm<alpha = 0.5, transB = TRANS>(x, w BIAS)
}"""
TARGET = Int8Static(head=True, min_side=1, per_channel=False)
STEP = BiasCorrection(before=TARGET)


def gemm(*, trans: int, bias: np.ndarray | None) -> ir.Model:
    text = GEMM.replace("TRANS", str(trans)).replace("BIAS", "" if bias is None else ", b")
    weight = normal(24, 20) * np.geomspace(0.02, 1, 20).astype(np.float32)
    held = {"w": weight.T.copy() if trans else weight}
    return model_of(text, held | ({} if bias is None else {"b": bias}))


def mean_error(model: ir.Model, original: ir.Model, feeds: dict[str, np.ndarray]) -> float:
    """Mean output error a channel, of the model with its weights rounded as they will be."""
    wanted = run(original, feeds)[0]
    for node in model.graph:
        array = edit.const_array(node.inputs[1])
        assert array is not None
        steps = np.float32(np.abs(array).max() / 127)
        rounded = (np.rint(array / steps) * steps).astype(np.float32)
        node.replace_input_with(1, edit.Editor(model.graph).add_constant("rounded", rounded))
    return float(np.abs((run(model, feeds)[0] - wanted).mean(axis=0)).max())


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", [None, normal(20, seed=3), normal(1, 20)])
def test_the_mean_error_of_a_layer_is_gone(trans: int, bias: np.ndarray | None) -> None:
    feeds = {"x": normal(400, 24, seed=5) + 1}
    model = gemm(trans=trans, bias=bias)
    assert quantize(model, STEP, [feeds]) == 1
    plain = mean_error(gemm(trans=trans, bias=bias), gemm(trans=trans, bias=bias), feeds)
    assert plain > 1e-3
    assert mean_error(model, gemm(trans=trans, bias=bias), feeds) < plain / 50


def test_means_of_a_network_come_closer_after_int8() -> None:
    feeds = {"x": np.concatenate([one["x"] for one in images(12, seed=70)])}
    wanted = run(cnn(), feeds)[0].mean(axis=0)

    def error(*steps: BiasCorrection) -> float:
        model = cnn()
        for step in (*steps, TARGET):
            quantize(model, step, images(12))
        return float(np.abs(run(model, feeds)[0].mean(axis=0) - wanted).max())

    assert error(STEP) < 0.9 * error()


def test_weights_stay_and_only_biases_change() -> None:
    model = cnn()
    assert quantize(model, STEP, images()) == 4
    for old, new in zip(weights(cnn()), weights(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert ops(model) == ops(cnn())


def test_weights_on_the_grid_leave_nothing_to_correct() -> None:
    model = mlp()
    quantize(model, AdaptiveRounding(before=TARGET), rows())
    before = run(model, rows()[0])[0]
    quantize(model, STEP, rows())
    np.testing.assert_allclose(run(model, rows()[0])[0], before, atol=1e-5)


def test_products_without_a_bias_are_said_or_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[b,32] x, float[32] c) => (float[b,32] y) {
      h = MatMul(x, w1)
      z = Add(h, b)
      y = MatMul(z, w2)
    }"""
    held = {"w1": normal(32, 32), "w2": normal(32, 32, seed=1), "b": normal(32, seed=2)}
    feeds = [{"x": normal(9, 32), "c": normal(32)}]
    model = model_of(text, held)
    assert quantize(model, BiasCorrection(), feeds) == 1
    assert edit.take_notes(model) == "no bias to correct: 1 of 2 layers"
    bare = model_of(text.replace("Add(h, b)", "Add(h, c)"), held)
    with pytest.raises(Refused, match="of 2 layers none has a constant bias"):
        quantize(bare, BiasCorrection(), feeds)


def test_only_means_are_gathered() -> None:
    probes = STEP.probes(cnn())
    found = observe(cnn(), probes, images(1))
    seconds = [one.moments.second.size for one in found.values() if one.moments is not None]
    assert seconds == [0, 0, 0, 0]
