"""float16 by measured ranges: every rule pins what it is for, and nothing else."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.true_half import rounded
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr

from ortune.core.errors import BadSettings
from ortune.core.step import Recipe
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.quantizers.bf16 import Bf16
from ortune.quantizers.fp16 import Fp16
from ortune.search.recipe.build import build


def toy(body: str, signature: str = "(float[n,8] x) => (float[n,8] y)") -> ir.Model:
    """Return `body` from a to z between two matrix products.

    Light operators at the border would stay in float32 with a pinned neighbour. Nodes are named
    after what they make.
    """
    eye = "{" + ",".join("1" if i % 9 == 0 else "0" for i in range(64)) + "}"
    model = model_of(
        f"""g {signature}
        <float[8,8] i = {eye}, float[8,8] j = {eye}>
        {{ a = MatMul(x, i) {body} y = MatMul(z, j) }}"""
    )
    return named(model)


def named(model: ir.Model) -> ir.Model:
    for node in model.graph.all_nodes():
        node.name = f"at_{node.outputs[0].name}"
    return model


def truth(model: ir.Model, feed: dict[str, np.ndarray], *, sums: bool = False) -> np.ndarray:
    """Run with every float16 value rounded, whatever the runtime computes in."""
    return run(rounded(model.clone(), sums=sums), feed, "DISABLE_ALL")[0]


def wide(model: ir.Model) -> set[str]:
    """Return the names of the float32 values that nodes other than Casts make."""
    return {
        str(node.outputs[0].name).removesuffix("_inner")
        for node in model.graph
        if node.op_type not in ("Cast", "Constant") and node.outputs[0].dtype == ir.DataType.FLOAT
    }


SQUARES = "b = Mul(a, a) z = Sqrt(b)"


def test_an_overflow_is_pinned_on_both_its_sides() -> None:
    feed = {"x": normal(4, 8, scale=300)}
    plain, model = toy(SQUARES), toy(SQUARES)
    before = run(plain, feed)[0]
    Fp16().apply(plain, {})
    assert not np.isfinite(truth(plain, feed)).all()
    quantize(model, Fp16(), [feed])
    assert snr(before, truth(model, feed)) > 50
    assert wide(model) == {"b", "z"}
    assert "2 of them by measured ranges: at_b (overflow" in edit.take_notes(model)
    assert "ranges were not measured" in edit.take_notes(plain)


@pytest.mark.parametrize(("value", "pinned"), [(150, set()), (200, {"b", "z"})])
def test_the_margin_is_for_unseen_data(value: float, pinned: set[str]) -> None:
    feed = {"x": np.full((1, 8), value, np.float32)}
    model, bold = toy(SQUARES), toy(SQUARES)
    quantize(model, Fp16(margin=2), [feed])
    assert wide(model) == pinned
    quantize(bold, Fp16(margin=1), [feed])
    assert wide(bold) == set()


@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceMean<axes = [2, 3], keepdims = 1>"])
def test_a_small_mean_of_many_overflows_inside(op: str) -> None:
    def made() -> ir.Model:
        return named(
            model_of(
                f"""g (float[1,2,192,192] x) => (float[1,2,1,1] y)
                <float[2,1,1,1] w = {{1,1}}, float[2,1,1,1] v = {{1,1}}> {{
                  a = Conv<group = 2>(x, w) b = {op}(a) y = Conv<group = 2>(b, v)
                }}"""
            )
        )

    feed = {"x": np.full((1, 2, 192, 192), 3.0, np.float32)}
    plain, model = made(), made()
    before = run(plain, feed)[0]
    Fp16().apply(plain, {})
    assert np.isinf(truth(plain, feed, sums=True)).all()
    quantize(model, Fp16(), [feed])
    assert snr(before, truth(model, feed, sums=True)) > 50
    assert wide(model) == {"b"}
    assert "at_b (sum 1.11e+05)" in edit.take_notes(model)


def test_a_divisor_that_vanishes() -> None:
    text = """
      b = Mul(a, a)
      eps = Constant<value = float {1e-12}>()
      m = ReduceMean<axes = [-1], keepdims = 1>(b)
      v = Add(m, eps)
      s = Sqrt(v)
      z = Div(a, s)"""
    feed = {"x": normal(4, 8, scale=1e-4)}
    plain, model = toy(text), toy(text)
    before = run(plain, feed)[0]
    Fp16().apply(plain, {})
    assert np.isnan(truth(plain, feed)).all()
    quantize(model, Fp16(), [feed])
    assert snr(before, truth(model, feed)) > 40
    assert {"b", "m", "v", "s"} <= wide(model)
    assert "(vanish" in edit.take_notes(model)


def test_a_step_that_needs_absolute_precision() -> None:
    feed = {"x": normal(4, 8) - np.float32(400)}
    model, small = toy("z = Softmax(a)"), toy("z = Softmax(a)")
    before = run(model, feed)[0]
    quantize(model, Fp16(), [feed])
    assert wide(model) == {"a", "z"}
    assert snr(before, truth(model, feed)) > 50
    quantize(small, Fp16(), [{"x": normal(4, 8)}])
    assert wide(small) == set()


def test_a_difference_of_large_numbers() -> None:
    text = "big = Constant<value = float {30000}>() b = Add(a, big) z = Sub(b, big)"
    model, plain = toy(text), toy(text)
    feed = {"x": normal(4, 8)}
    before = run(model, feed)[0]
    Fp16().apply(plain, {})
    assert snr(before, truth(plain, feed)) < 5
    quantize(model, Fp16(margin=1), [feed])
    assert wide(model) == {"b", "z"}
    assert snr(before, truth(model, feed)) > 50
    assert "at_z (cancel" in edit.take_notes(model)


def test_masks_do_not_count() -> None:
    text = """
      low = Constant<value = float {-3.4028235e38}>()
      zero = Constant<value = float {0}>()
      bias = Where(m, zero, low)
      s = Add(a, bias)
      z = Softmax(s)"""
    model = toy(text, "(bool[n,8] m, float[n,8] x) => (float[n,8] y)")
    feed = {"m": np.array([[True, False] * 4]), "x": normal(1, 8)}
    quantize(model, Fp16(), [feed])
    assert wide(model) == set()


def test_a_fill_beyond_float16_is_carried_to_its_readers_without_data() -> None:
    text = """
      low = Constant<value = float {-1e9}>()
      s = Where(m, a, low)
      t = Identity(s)
      z = Softmax(t)"""
    model = toy(text, "(bool[n,8] m, float[n,8] x) => (float[n,8] y)")
    feed = {"m": np.array([[True, False] * 4, [False] * 8]), "x": normal(2, 8)}
    before = run(model, feed)[0]
    Fp16().apply(model, {})
    assert wide(model) == {"s", "t", "z"}
    assert snr(before, truth(model, feed)) > 50


def test_long_sums_of_products_where_the_runtime_adds_in_float16() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,4096] x) => (float[n,8] y) {
      b = MatMul(x, w) y = MatMul(b, v)
    }"""
    feed = {"x": normal(2, 4096)}
    for step, pinned in ((Fp16(), set()), (Fp16(sums="float16"), {"b"})):
        model = named(model_of(text, {"w": normal(4096, 8, scale=0.01), "v": normal(8, 8)}))
        quantize(model, step, [feed])
        assert wide(model) == pinned


def test_what_lies_between_pinned_nodes_stays_too() -> None:
    model = toy("b = Exp(a) t = Identity(b) z = Sqrt(t)")
    Fp16(exclude=("at_b", "at_z")).apply(model, {})
    assert wide(model) == {"b", "t", "z"}
    assert ops(model).count("Cast") == 4


def test_casts_that_change_nothing_go_and_rounding_stays() -> None:
    text = "b = Cast<to = 1>(a) down = Cast<to = 10>(b) up = Cast<to = 1>(down) z = Neg(up)"
    model, apart = toy(text), toy(text)
    Fp16().apply(model, {})
    assert ops(model) == ["Cast", "MatMul", "Neg", "MatMul", "Cast"]
    Fp16(exclude=("at_a", "at_z")).apply(apart, {})
    assert ops(apart) == ["MatMul", "Cast", "Cast", "Neg", "Cast", "MatMul", "Cast"]


def test_only_what_is_included() -> None:
    model = toy(SQUARES)
    Fp16(include=("at_z", "at_y")).apply(model, {})
    assert wide(model) == {"a", "b"}


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_pattern_that_matches_nothing(field: str) -> None:
    step = Fp16(include=("no*",)) if field == "include" else Fp16(exclude=("no*",))
    with pytest.raises(BadSettings, match=rf"{field} pattern 'no\*' matches no node"):
        step.apply(toy(SQUARES), {})


def test_half_of_the_weight_bytes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,256] x) => (float[n,64] y) {
      a = MatMul(x, w) b = Add(a, c) y = Relu(b)
    }"""
    model = named(model_of(text, {"w": normal(256, 64), "c": normal(64)}))

    def held() -> dict[ir.DataType, int]:
        tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value]
        return {t.dtype: sum(o.nbytes for o in tensors if o.dtype == t.dtype) for t in tensors}

    before = sum(held().values())
    Fp16().apply(model, {})
    assert held() == {ir.DataType.FLOAT16: before // 2}


def test_bfloat16_has_float32s_range_and_fewer_digits() -> None:
    model = toy(SQUARES)
    quantize(model, Bf16(), [{"x": normal(4, 8, scale=3000)}])
    assert wide(model) == set()
    step = toy("z = Softmax(a)")
    quantize(step, Bf16(), [{"x": normal(4, 8) - np.float32(40)}])
    assert wide(step) == {"a", "z"}


@pytest.mark.parametrize("step", [Fp16(keep_io=False), Bf16(keep_io=False)])
def test_a_build_lets_types_of_inputs_and_outputs_change_when_asked(
    step: Fp16 | Bf16, tmp_path: Path
) -> None:
    source = file.save(toy(SQUARES), tmp_path / "source.onnx")
    built = build(source, Recipe("half", (step,)), tmp_path / "out.onnx")
    model = file.load(built.path)
    (given,), (made,) = model.graph.inputs, model.graph.outputs
    assert given.dtype == made.dtype != ir.DataType.FLOAT
    assert "Cast" not in ops(model)
    assert (given.name, made.name) == ("x", "y")
