"""Rewrites of models that arrive quantized change no bit of the answer."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import left_alone, model_of, normal, ops, run

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.graph.analysis.facts import read_facts
from ortune.search.recipe.space import make_clean_recipe
from ortune.transforms.dequantize_late import DequantizeLate
from ortune.transforms.fuse_dynamic_products import FuseDynamicProducts
from ortune.transforms.tidy_pairs import TidyPairs
from ortune.transforms.u8s8 import U8s8

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


def same(text: str, step: object, feeds: dict[str, np.ndarray]) -> tuple[ir.Model, int]:
    """Apply a step and demand equal bits, with the runtime's rewrites off."""
    before = model_of(text)
    after = before.clone()
    count = step.apply(after)  # type: ignore[attr-defined]
    for one, two in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(two, one)
    return after, count


def dtypes(model: ir.Model, *names: str) -> list[ir.DataType | None]:
    values = {v.name: v for node in model.graph for v in node.outputs}
    return [values[name].dtype for name in names]


CONV = f"""{HEAD}
g (float[1,2,6,6] x) => (float[1,3,2,2] y)
<float s = {{0.02}}, int8 z = {{-7}}, float ws = {{0.01}}, int8 wz = {{0}}, int8 fill = {{-7}},
 float t = {{0.05}}, int8 tz = {{3}}, int64[8] pads = {{0,0,0,0,0,0,0,0}},
 int8[3,2,3,3] w = {{{", ".join(str((7 * i) % 255 - 127) for i in range(54))}}}> {{
  q = QuantizeLinear(x, s, z)
  p = Pad(q, pads, fill)
  d = DequantizeLinear(p, s, z)
  v = DequantizeLinear(w, ws, wz)
  c = Conv<kernel_shape = [3,3]>(d, v)
  e = QuantizeLinear(c, t, tz)
  m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(e)
  y = DequantizeLinear(m, t, tz)
}}"""


def test_signed_activations_move_through_what_only_moves_them() -> None:
    after, count = same(CONV, U8s8(), {"x": normal(1, 2, 6, 6)})
    assert count == 4
    assert dtypes(after, "q", "p", "e", "m") == [ir.DataType.UINT8] * 4
    assert U8s8().apply(after) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(e)", "m = Cast<to = 3>(e)"),
        ("y = DequantizeLinear(m, t, tz)", "y = DequantizeLinear(m, t, tz)\n k = Cast<to=6>(e)"),
    ],
)
def test_what_ends_in_an_unknown_operator_stays(old: str, new: str) -> None:
    model = model_of(CONV.replace(old, new))
    assert U8s8().apply(model) == 2
    assert dtypes(model, "q", "e") == [ir.DataType.UINT8, None]


QLINEAR = f"""{HEAD}
g (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float s = {{0.02}}, int8 z = {{-7}}, float ws = {{0.01}}, int8 wz = {{0}}, float t = {{0.05}},
 int8 tz = {{3}}, int8[2,2,1,1] w = {{127, -127, 3, -90}}, int32[2] b = {{5, -9}}> {{
  q = QuantizeLinear(x, s, z)
  c = QLinearConv(q, s, z, w, ws, wz, t, tz, b)
  a = com.microsoft.QLinearAdd(c, t, tz, q, s, z, t, tz)
  y = DequantizeLinear(a, t, tz)
}}"""


def test_integer_operators_move_together() -> None:
    after, count = same(QLINEAR, U8s8(), {"x": normal(1, 2, 4, 4)})
    assert count == 3
    assert after.graph.initializers["w"].dtype == ir.DataType.INT8


def test_a_dtype_that_the_model_gives_out_stays() -> None:
    text = QLINEAR.replace("(float[1,2,4,4] y)", "(float[1,2,4,4] y, int8[1,2,4,4] c)")
    assert U8s8().apply(model_of(text)) == 0


DYNAMIC = f"""{HEAD}
g (float[3,4] x) => (float[3,2] y)
<uint8[4,2] w = {{0, 255, 130, 1, 128, 127, 4, 250}}, uint8 wz = {{126}}, float ws = {{0.02}}> {{
  q, s, z = DynamicQuantizeLinear(x)
  i = MatMulInteger(q, w, z, wz)
  f = Cast<to = 1>(i)
  g = Mul(f, s)
  y = Mul(g, ws)
}}"""


def test_unsigned_weights_become_signed_with_and_without_a_zero_point() -> None:
    after, count = same(DYNAMIC, U8s8(), {"x": normal(3, 4)})
    assert count == 1 and "w_int8" in after.graph.initializers
    bare = DYNAMIC.replace("MatMulInteger(q, w, z, wz)", "MatMulInteger(q, w, z)")
    _, count = same(bare, U8s8(), {"x": normal(3, 4)})
    assert count == 1


def test_scales_are_joined_so_that_the_runtime_makes_one_kernel() -> None:
    model = model_of(DYNAMIC)
    before = run(model, {"x": normal(3, 4)})[0]
    assert FuseDynamicProducts().apply(model) == 1
    np.testing.assert_allclose(run(model, {"x": normal(3, 4)})[0], before, rtol=1e-6)
    np.testing.assert_allclose(
        run(model, {"x": normal(3, 4)}, disabled=False)[0], before, rtol=1e-5
    )
    assert FuseDynamicProducts().apply(model) == 0


TABLE = f"""{HEAD}
g (int64[2,3] ids) => (float[2,3,4] y)
<int8[5,4] table = {{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20}}, float s = {{0.5}},
 int8 z = {{3}}, float[4] sc = {{0.5, 1, 2, 4}}, int8[4] zc = {{1, 2, 3, 4}},
 float[5] sr = {{1, 2, 3, 4, 5}}, int8[5] zr = {{0, 0, 0, 0, 0}}> {{
  w = DequantizeLinear(table, s, z)
  y = Gather(w, ids)
}}"""
IDS = {"ids": np.array([[0, 4, 2], [1, 1, 3]])}


@pytest.mark.parametrize(("call", "count"), [("(table, s, z)", 1), ("<axis=1>(table, sc, zc)", 1)])
def test_rows_are_looked_up_in_integers(call: str, count: int) -> None:
    text = TABLE.replace("(table, s, z)", call)
    after, found = same(text, DequantizeLate(), IDS)
    assert found == count
    assert [node.op_type for node in after.graph] == ["Gather", "DequantizeLinear"]


def test_one_step_a_row_cannot_follow_the_look_up() -> None:
    text = TABLE.replace("(table, s, z)", "<axis = 0>(table, sr, zr)")
    left_alone(text, DequantizeLate())


def test_a_transposed_weight_is_stored_transposed() -> None:
    text = f"""{HEAD}
    g (float[1,4] x) => (float[1,2] y)
    <int8[2,4] w = {{1,2,3,4,5,6,7,8}}, float[2] s = {{0.5, 2}}, int8[2] z = {{1, 2}}> {{
      v = DequantizeLinear<axis = 0>(w, s, z)
      t = Transpose<perm = [1, 0]>(v)
      y = MatMul(x, t)
    }}"""
    after, count = same(text, DequantizeLate(), {"x": normal(1, 4)})
    assert count == 1 and ops(after) == {"DequantizeLinear": 1, "MatMul": 1}


PAIRS = f"""{HEAD}
g (float[1,4] x) => (float[1,2] y)
<float[4,2] w = {{1, -2, 3.3, 4, 5, 6, 7, 8}}, float[2] ws = {{0.1, 0.07}}, int8[2] wz = {{0, 0}},
 float s = {{0.03}}, uint8 z = {{100}}, float t = {{0.04}}> {{
  i = QuantizeLinear<axis = 1>(w, ws, wz)
  v = DequantizeLinear<axis = 1>(i, ws, wz)
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  q2 = QuantizeLinear(d, s, z)
  d2 = DequantizeLinear(q2, s, z)
  q3 = QuantizeLinear(d2, t, z)
  d3 = DequantizeLinear(q3, t, z)
  y = MatMul(d3, v)
}}"""


def test_constants_are_rounded_once_and_nothing_twice() -> None:
    after, count = same(PAIRS, TidyPairs(), {"x": normal(1, 4)})
    assert count == 2
    assert ops(after) == {"QuantizeLinear": 2, "DequantizeLinear": 3, "MatMul": 1}
    assert "w" not in after.graph.initializers


def test_the_search_takes_what_suits_the_backend() -> None:
    found: Facts = read_facts(model_of(CONV))

    def names(backend: Cpu | Openvino | None, flags: str, cpu: str = "x86_64") -> set[str]:
        offered = Capabilities(
            instruction_sets=tuple(flags.split()), machine={"system": f"Linux {cpu}"}
        )
        return {step.name() for step in make_clean_recipe(found, backend, offered).steps}

    assert {"u8s8", "tidy-pairs"} <= names(Cpu(), "avx2 avx512_vnni")
    assert "u8s8" not in names(Cpu(), "avx2")
    assert "u8s8" not in names(Openvino(), "avx_vnni")
    assert "u8s8" not in names(None, "avx_vnni")
    assert "u8s8" not in names(Cpu(), "avx_vnni", "aarch64")
