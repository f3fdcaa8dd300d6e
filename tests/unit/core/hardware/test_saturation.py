"""Sums that saturate in 16 bits: which can, which do, and what the simulated model answers.

The expected numbers of the kernels were compared with onnxruntime on an emulated CPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, quantize

from ortune.analysis.verification.verify import verify
from ortune.backends.cpu import Cpu
from ortune.backends.simulated import Simulated
from ortune.core.errors import BadSettings
from ortune.core.hardware import saturation
from ortune.core.hardware.cpus import instruction_sets
from ortune.graph.analysis.precision import list_saturable_layers
from ortune.graph.io import file
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.qoperator import Qoperator

RNG = np.random.default_rng(0)


def brute(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    x, w = saturation.pad_to_even(x, 1).astype(int), saturation.pad_to_even(w, 0).astype(int)
    sums = x[:, 0::2, None] * w[None, 0::2] + x[:, 1::2, None] * w[None, 1::2]
    return np.clip(sums, -32768, 32767).sum(axis=1)


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_what_is_lost(depth: int) -> None:
    x = RNG.integers(0, 256, (5, depth), dtype=np.uint8)
    w = RNG.integers(-128, 128, (depth, 9), dtype=np.int8)
    exact = x.astype(int) @ w.astype(int)
    risk = saturation.at_risk(w)
    np.testing.assert_array_equal(
        exact + saturation.compute_saturation_loss(x, w, risk), brute(x, w)
    )


@pytest.mark.parametrize(
    ("pair", "over"), [((64, 64), 0), ((64, 65), 128), ((-64, -65), 127), ((127, -128), 0)]
)
def test_which_pairs_can(pair: tuple[int, int], over: int) -> None:
    assert saturation.compute_worst_excess(np.array(pair, np.int8).reshape(2, 1)).item() == over


def test_seven_bits_never_do() -> None:
    w = RNG.integers(-63, 64, (200, 50), dtype=np.int8)
    assert not saturation.at_risk(w).any()


def test_the_kernel_sees_rows_columns_and_then_channels() -> None:
    w = np.arange(2 * 3 * 2 * 2, dtype=np.int8).reshape(2, 3, 2, 2)
    assert saturation.kernel_matrix(w)[:4, 0].tolist() == [0, 4, 8, 1]


NET = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,6,9,9] x) => (float[1,8] y) {
  a = Conv<kernel_shape = [3,3], pads = [1,0,1,2], strides = [2,1]>(x, w1, b1)
  b = Relu(a)
  c = Conv<kernel_shape = [3,3], group = 8, dilations = [1,2]>(b, w2)
  d = Conv<kernel_shape = [1,1], group = 2>(c, w3)
  e = GlobalAveragePool(d)
  f = Flatten(e)
  h = MatMul(f, w4)
  y = Tanh(h)
}
"""


def net(scale: float = 1.0) -> ir.Model:
    shapes = {
        "w1": (8, 6, 3, 3),
        "b1": (8,),
        "w2": (8, 1, 3, 3),
        "w3": (16, 4, 1, 1),
        "w4": (16, 8),
    }
    return model_of(
        NET, {n: normal(*s, seed=i, scale=scale) for i, (n, s) in enumerate(shapes.items())}
    )


SAMPLES = [{"x": np.abs(normal(1, 6, 9, 9, seed=i))} for i in range(3)]
FORMS = [(Int8Static(head=True, min_side=4),), (Int8Static(head=True, min_side=4), Qoperator())]


@pytest.mark.parametrize("steps", [*FORMS, (Int8Dynamic(min_side=4),)])
def test_without_saturation_it_answers_as_the_runtime_does(
    steps: tuple[Int8Static, ...], tmp_path: Path
) -> None:
    model = net()
    for step in steps:
        seven = {"reduce_range": True} if hasattr(step, "reduce_range") else {}
        quantize(model, type(step)(**(vars(step) | seven)), SAMPLES)
    assert all(layer.risky == 0 for layer in list_saturable_layers(model))
    path = file.save(model, tmp_path / "m.onnx")
    report = tmp_path / "r.json"
    with (
        Simulated(threads=1, report=str(report)).open(path) as one,
        Cpu(threads=1).open(path) as two,
    ):
        for feeds in SAMPLES:
            found, wanted = one.run(feeds)["y"], two.run(feeds)["y"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    layers = json.loads(report.read_text())["layers"]
    assert layers and not any(layer["saturated"] for layer in layers)


def test_what_saturates_is_told_and_changes_the_answer(tmp_path: Path) -> None:
    model = net()
    original = file.save(model, tmp_path / "fp32.onnx")
    quantize(model, FORMS[0][0], SAMPLES)
    risky = {layer.node for layer in list_saturable_layers(model) if layer.risky}
    assert risky
    path = file.save(model, tmp_path / "int8.onnx")
    given = {"shapes": {"x": (1, 6, 9, 9)}, "ranges": {"x": (0.0, 3.0)}, "budget": "snr>=1"}
    there = verify(original, path, simulate="avx2", **given)
    assert there.simulated is not None
    hit = [layer for layer in there.simulated.layers if layer.saturated]
    assert hit and all(layer.largest > 0 for layer in hit)
    with Simulated(threads=1).open(path) as one, Cpu(threads=1).open(path) as two:
        difference = np.abs(one.run(SAMPLES[0])["y"] - two.run(SAMPLES[0])["y"]).max()
    flags = instruction_sets()
    saturates_here = "avx2" in flags and not any("vnni" in flag for flag in flags)
    assert difference < 1e-6 if saturates_here else difference > 1e-3
    with pytest.raises(BadSettings, match="CPU kernels"):
        verify(original, path, simulate="avx2", on="reference", **given)


def test_depthwise_and_other_dtypes_are_safe() -> None:
    model = net(scale=2.0)
    quantize(model, Int8Static(), SAMPLES)
    assert not {"c"} & {layer.node for layer in list_saturable_layers(model)}
    signed = net()
    quantize(signed, Int8Static(activations="s8"), SAMPLES)
    assert list_saturable_layers(signed) == ()
