"""Smoothing: the same function in float, less loss in int8, free of cost where it can be."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.kit import cnn, images
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.graph.ir import edit
from ortune.quantizers import smooth_quant
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.smooth_quant import SmoothQuant

HEAD = """<ir_version: 8, opset_import: ["": 20]>
g (float[b,s,32] x, float[b,s,32] other) => (float[b,s,24] y) {"""

FREE = {
    "norm": "a = LayerNormalization<axis = -1>(x, g32, s32)",
    "norm-scale": "a = LayerNormalization<axis = -1>(x, g32)",
    "affine": "m = Mul(x, g32) a = Add(s32, m)",
    "scalar": "a = Mul(x, two)",
    "product": "p = MatMul(x, w32) q = Add(p, s32) a = Relu(q)",
    "leaky": "p = MatMul(x, w32) a = LeakyRelu(p)",
    "gated": "p = MatMul(x, w32) g = Sigmoid(other) a = Mul(g, p)",
}
COSTS = {
    "residual": "a = LayerNormalization<axis = -1>(x, g32, s32) b = Add(a, other)",
    "curved": "p = MatMul(x, w32) a = Gelu(p)",
    "sum": "a = Add(x, other)",
    "input": "a = Identity(x)",
    "per-row": "a = Mul(x, other)",
    "square": "p = MatMul(x, w32) a = Mul(p, p)",
}


def model(above: str) -> ir.Model:
    residual = "t = ReduceSum(b) z = MatMul(a, w) y = Add(z, t)"
    body = residual if "b = " in above else "y = MatMul(a, w)"
    far = np.ones(32, np.float32)
    far[[3, 17]] = 60
    return model_of(
        f"{HEAD} {above} {body} }}",
        {
            "g32": normal(32, seed=1) * far,
            "s32": normal(32, seed=2),
            "w32": normal(32, 32, seed=3, scale=0.2) * far,
            "w": normal(32, 24, seed=4, scale=0.2) / (1 + far[:, None] / 10),
            "two": np.array([2.0], np.float32),
        },
    )


def feeds(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": normal(2, 50, 32, seed=seed), "other": normal(2, 50, 32, seed=seed + 50)}


def smoothed(above: str, step: SmoothQuant) -> tuple[ir.Model, str]:
    made = model(above)
    assert quantize(made, step, [feeds(i) for i in range(4)]) >= 1
    return made, edit.take_notes(made)


@pytest.mark.parametrize("name", [*FREE, *COSTS])
def test_float_outputs_stay(name: str) -> None:
    above = (FREE | COSTS)[name]
    before = ops(model(above))
    made, note = smoothed(above, SmoothQuant())
    wanted, found = run(model(above), feeds(9))[0], run(made, feeds(9))[0]
    assert snr(wanted, found) > 110
    of_the_first = "p = " in above
    made_of_its_own = ops(made).count("Mul") - before.count("Mul") - of_the_first
    assert made_of_its_own == (name in COSTS), note


def test_a_division_of_its_own_where_told() -> None:
    made, note = smoothed(FREE["norm"], SmoothQuant(fold=False))
    assert ops(made).count("Mul") == 1 and note == "0 of 1 division free at run time"
    made, note = smoothed(FREE["norm"], SmoothQuant())
    assert "Mul" not in ops(made) and note == "1 of 1 division free at run time"


def test_outliers_cost_less_in_int8_than_without() -> None:
    above, data = FREE["norm"], [feeds(i) for i in range(4)]
    wanted = run(model(above), feeds(9))[0]
    plain = model(above)
    quantize(plain, Int8Static(), data)
    step, _ = smoothed(above, SmoothQuant())
    quantize(step, Int8Static(), data)
    built_in = model(above)
    quantize(built_in, Int8Static(smooth=0.75), data)
    alone = snr(wanted, run(plain, feeds(9))[0])
    found = snr(wanted, run(step, feeds(9))[0])
    assert found > alone + 6
    assert abs(found - snr(wanted, run(built_in, feeds(9))[0])) < 1


def test_factors_moved_one_way_only_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison in float fails when the weights do not make up for it."""
    monkeypatch.setattr(smooth_quant, "put_weight", lambda editor, layers, array: None)
    made, _ = smoothed(FREE["norm"], SmoothQuant())
    assert snr(run(model(FREE["norm"]), feeds(9))[0], run(made, feeds(9))[0]) < 20


def test_products_of_one_activation_share_the_division() -> None:
    above = "a = Gelu(x) k = MatMul(a, w32) kk = Abs(k)"
    made = model(above)
    assert quantize(made, SmoothQuant(), [feeds(i) for i in range(4)]) == 1
    assert ops(made).count("Mul") == 1
    assert snr(run(model(above), feeds(9))[0], run(made, feeds(9))[0]) > 110


SPLIT = """<ir_version: 8, opset_import: ["": 20]>
g (float[b,s,64] x) => (float[b,s,24] y) {
  a = Gelu(x)
  BODY
}"""
LAYERS = {
    "bias": "p = MatMul(a, w) y = Add(p, b)",
    "bare": "p = MatMul(a, w) y = Relu(p)",
    "output": "y = MatMul(a, w)",
}


def far_feeds(seed: int) -> dict[str, np.ndarray]:
    x = normal(2, 50, 64, seed=seed)
    x[:, :, [5, 40]] *= 80
    return {"x": x}


@pytest.mark.parametrize("name", LAYERS)
def test_far_channels_of_a_narrowing_layer_are_multiplied_apart(name: str) -> None:
    def made() -> ir.Model:
        held = {"w": normal(64, 24, scale=0.2), "b": normal(24, seed=1)}
        return model_of(SPLIT.replace("BODY", LAYERS[name]), held)

    wanted, data = run(made(), far_feeds(9))[0], [far_feeds(i) for i in range(4)]
    apart, plain = made(), made()
    assert quantize(apart, SmoothQuant(), data) == 1
    assert "1 activation with channels apart" in edit.take_notes(apart)
    assert snr(wanted, run(apart, far_feeds(9))[0]) > 110
    quantize(apart, Int8Static(), data)
    quantize(plain, Int8Static(), data)
    assert ops(apart).count("QuantizeLinear") == 1
    alone = snr(wanted, run(plain, far_feeds(9))[0])
    assert snr(wanted, run(apart, far_feeds(9))[0]) > alone + 15


def test_networks_without_products_are_refused() -> None:
    with pytest.raises(Refused, match="no matrix product"):
        quantize(cnn(), SmoothQuant(), images())


def test_an_alpha_that_moves_nothing_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"alpha=0\.0"):
        SmoothQuant(alpha=0.0)
