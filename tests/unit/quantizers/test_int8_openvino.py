"""Static int8 for OpenVINO: pairs where integers are read, zero points, strides written once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import Refused
from ortune.quantizers.drop_pairs import DropPairs
from ortune.quantizers.int8_static import Int8Static

OPENVINO = Int8Static(target="openvino")
SILU = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
  a = Conv(x, w)
  s = Sigmoid(a)
  m = Mul(a, s)
  y = Conv(m, w)
}"""
RESIDUAL = """g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] e) {
  a = Conv(x, w)
  b = Conv(a, w)
  s = Add(a, b)
  r = Relu(s)
  y = Conv(r, w)
  e = Erf(r)
}"""
EARLY = """g (float[1,4,9,9] x) => (float[1,4,5,5] y) {
  a = Relu(x)
  b = Conv<strides = [2,2]>(a, w)
  c = Conv<strides = [2,2]>(a, v)
  y = Add(b, c)
}"""
OUTPUT: dict[str, list[str]] = {"y_float": []}
"""The pair in front of a graph's output, which steps on foreign files leave."""
WEIGHTS = {"w": normal(4, 4, 1, 1), "v": normal(4, 4, 1, 1, seed=1)}


def rounded(model: ir.Model) -> dict[str, list[str]]:
    """Return tensor that gets a pair -> operators that read the rounded values."""
    found: dict[str, list[str]] = {}
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            late = [use.node for use in node.outputs[0].uses()]
            readers = [use.node.op_type for one in late for use in one.outputs[0].uses()]
            found[str(node.inputs[0].name)] = sorted(readers)
    return found


def test_a_float_activation_behind_a_convolution_reads_float() -> None:
    model = model_of(SILU, WEIGHTS)
    quantize(model, OPENVINO, [{"x": normal(1, 4, 8, 8, seed=2)}])
    assert rounded(model) == {"x": ["Conv"], "m": ["Conv"]}


def test_integers_that_a_layer_reads_pass_through_what_is_between() -> None:
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, OPENVINO, [{"x": normal(1, 4, 8, 8, seed=2)}])
    assert rounded(model) == {"x": ["Conv"], "a": ["Add", "Conv"], "b": ["Add"], "r": ["Conv"]}
    relu = model.graph.outputs[1].producer().inputs[0]
    assert sorted(use.node.op_type for use in relu.uses()) == ["Erf", "QuantizeLinear"]


def test_without_zero_points_the_sign_decides() -> None:
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, replace(OPENVINO, symmetric=True), [{"x": normal(1, 4, 8, 8, seed=2)}])
    zeros = {
        str(node.inputs[0].name): node.inputs[2].const_value
        for node in model.graph
        if node.op_type == "QuantizeLinear"
    }
    assert {name: zero.dtype for name, zero in zeros.items()} == {
        "x": ir.DataType.INT8,
        "a": ir.DataType.INT8,
        "b": ir.DataType.INT8,
        "r": ir.DataType.UINT8,
    }
    assert not any(zero.numpy().any() for zero in zeros.values())


def test_a_file_for_every_cpu_keeps_zero_points() -> None:
    symmetric = replace(OPENVINO, symmetric=True)
    assert not symmetric.portable
    assert not replace(symmetric, reduce_range=True).portable
    assert symmetric.made_portable() == replace(OPENVINO, reduce_range=True)
    assert symmetric.made_portable().portable


@pytest.mark.parametrize(("line", "pools"), [("", 1), ("z = Erf(a)", 0)])
def test_strides_on_one_tensor_are_written_once(line: str, pools: int) -> None:
    text = EARLY.replace("  b =", f"  {line}\n  b =")
    feed = {"x": normal(1, 4, 9, 9, seed=2)}
    model = model_of(text, WEIGHTS)
    before = run(model, feed)[0]
    OPENVINO.probes(model)  # the exact rewrites alone
    assert ops(model).count("MaxPool") == pools
    np.testing.assert_array_equal(run(model, feed)[0], before)
    quantize(model, OPENVINO, [feed])
    assert snr(before, run(model, feed)[0]) > 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b = Conv<strides = [2,2]>", "b = Conv<strides = [2,2], pads = [1,1,1,1]>"),
        ("b = Conv<strides = [2,2]>(a, w)", "b = Conv<strides = [2,2]>(x, w)"),
        ("(a, v)", '(a, v) d = Conv<strides = [2,2], auto_pad = "SAME_UPPER">(a, v)'),
    ],
)
def test_other_strides_stay(old: str, new: str) -> None:
    text = EARLY.replace(old, new).replace("=> (float[1,4,5,5] y)", "=> (float y)")
    model = model_of(text.replace("y = Add(b, c)", "y = Sum(b)"), WEIGHTS)
    OPENVINO.probes(model)
    assert "MaxPool" not in ops(model)


def test_pairs_of_another_tool_stay_where_openvino_computes_with_their_integers() -> None:
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(SILU, WEIGHTS)
    quantize(model, Int8Static(), [feed])
    before = run(model, feed)[0]
    assert rounded(model).keys() == {"x", "a", "s", "m", *OUTPUT}
    DropPairs(target="openvino").apply(model, {})
    assert rounded(model) == {"x": ["Conv"], "m": ["Conv"], **OUTPUT}
    assert snr(before, run(model, feed)[0]) > 25


def test_a_float_reader_of_a_pair_that_stays_takes_float() -> None:
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(RESIDUAL, WEIGHTS)
    quantize(model, Int8Static(), [feed])
    assert "Erf" in str(rounded(model)["r"]) or "Sum" in str(rounded(model)["r"])
    DropPairs(target="openvino").apply(model, {})
    kept = {"x": ["Conv"], "a": ["Add", "Conv"], "b": ["Add"], "r": ["Conv"]}
    assert rounded(model) == kept | OUTPUT


def test_pairs_of_a_transposed_convolution_stay() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,16,16] y) {
      a = ConvTranspose<strides = [2,2]>(x, u)
      y = Conv(a, w)
    }"""
    feed = {"x": normal(1, 4, 8, 8, seed=2)}
    model = model_of(text, {"u": normal(4, 4, 2, 2), "w": WEIGHTS["w"]})
    quantize(model, OPENVINO, [feed])
    with pytest.raises(Refused, match="belongs to an integer kernel"):
        DropPairs(target="openvino").apply(model, {})
    assert rounded(model) == {"x": ["ConvTranspose"], "a": ["Conv"]}
