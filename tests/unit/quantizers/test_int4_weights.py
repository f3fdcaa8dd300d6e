"""4-bit weights in a graph: which nodes, in which form, and how large the file becomes."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.unit.quantizing import (
    Arrays,
    model_of,
    normal,
    ops,
    optimized,
    snr,
    stored_bytes,
    unchecked,
)

from ortune.core.errors import BadData, BadSettings, Refused
from ortune.core.observer import Moments, Range
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.quantizers.common.grid import BlockSpec
from ortune.quantizers.int4_weights import Int4Weights
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_weights import Int8Weights

IDS = np.array([[3, 5, 99], [0, 0, -1]])
CASES: dict[str, tuple[str, Arrays, Arrays]] = {
    "matmul": (
        "g (float[b,s,64] x) => (float[b,s,48] y) { y = MatMul(x, w) }",
        {"w": normal(64, 48)},
        {"x": normal(2, 3, 64)},
    ),
    "gemm": (
        "g (float[n,64] x) => (float[n,48] y) { y = Gemm(x, w, c) }",
        {"w": normal(64, 48), "c": normal(48, seed=1)},
        {"x": normal(3, 64)},
    ),
    "transposed gemm with factors and an odd bias": (
        """g (float[n,64] x, float[n,1] c) => (float[n,48] y) {
          y = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, c)
        }""",
        {"w": normal(48, 64)},
        {"x": normal(3, 64), "c": normal(3, 1, seed=1)},
    ),
    "gemm with factors and one number": (
        "g (float[n,64] x) => (float[n,48] y) { y = Gemm<alpha = 3.0, beta = 0.5>(x, w, c) }",
        {"w": normal(64, 48), "c": normal(1, seed=1)},
        {"x": normal(3, 64)},
    ),
    "transposed": (
        """g (float[b,s,64] x) => (float[b,s,48] y) {
          turned = Transpose(w)
          same = Identity(turned)
          y = MatMul(x, same)
        }""",
        {"w": normal(48, 64)},
        {"x": normal(2, 3, 64)},
    ),
    "table": (
        "g (int64[b,s] ids) => (float[b,s,64] y) { y = Gather(t, ids) }",
        {"t": normal(100, 64)},
        {"ids": IDS},
    ),
    "tied": (
        """g (int64[b,s] ids) => (float[b,s,100] y) {
          e = Gather(t, ids)
          turned = Transpose<perm = [1, 0]>(t)
          y = MatMul(e, turned)
        }""",
        {"t": normal(100, 96)},
        {"ids": IDS},
    ),
}
STEPS: list[Int4Weights | Int8Weights] = [
    Int4Weights(accuracy_level=0, method="rtn", symmetric=symmetric, form=form)
    for symmetric in (True, False)
    for form in ("nbits", "qdq")
]
STEPS += [Int8Weights(form=form, block=32, accuracy_level=0) for form in ("nbits", "qdq")]


def head(body: str) -> str:
    return f"""<ir_version: 10, opset_import: ["": 17]> {body}"""


def blocks(array: np.ndarray, step: Int4Weights | Int8Weights, axis: int) -> np.ndarray:
    """Round a weight as `step` does, by the plain formula."""
    bits = 4 if isinstance(step, Int4Weights) else 8
    rows = np.moveaxis(array, axis, 1).astype(np.float64)
    folded = rows.reshape(len(rows), -1, 32)
    low, high = folded.min(-1, keepdims=True), folded.max(-1, keepdims=True)
    if step.symmetric:
        scale = np.where(-low > high, low, high) / -(2.0 ** (bits - 1))
        zero = np.full(scale.shape, 2.0 ** (bits - 1))
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / (2**bits - 1)
        zero = np.rint(-low / scale)
    whole = np.clip(np.rint(folded / scale) + zero, 0, 2**bits - 1)
    return np.moveaxis(((whole - zero) * scale).reshape(rows.shape), 1, axis).astype(np.float32)


def weight(case: str) -> tuple[str, int]:
    """Return a case's weight and the axis that is summed over."""
    name = "t" if case in ("table", "tied") else "w"
    return name, 0 if case in ("matmul", "gemm", "gemm with factors and one number") else 1


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_form_computes_what_the_rounded_weights_do(
    case: str, step: Int4Weights | Int8Weights
) -> None:
    text, weights, feed = CASES[case]
    name, axis = weight(case)
    rounded = {**weights, name: blocks(weights[name], step, axis)}
    wanted = unchecked(model_of(head(text), rounded), feed, "ENABLE_BASIC")[0]
    model = model_of(head(text), weights)
    assert step.apply(model, {}) == 1
    onnx.checker.check_model(ir.to_proto(model))
    # Level basic: from extended on the runtime rounds activations of the standard form too.
    assert snr(wanted, unchecked(model, feed, "ENABLE_BASIC")[0]) > 80
    assert name not in model.graph.initializers and "Transpose" not in ops(model)


@pytest.mark.parametrize("case", CASES)
def test_the_runtime_fuses_the_standard_form(case: str, tmp_path: Path) -> None:
    text, weights, _ = CASES[case]
    model = model_of(head(text), weights)
    Int4Weights(form="qdq").apply(model, {})
    assert model.opset_imports[""] == 21
    made = optimized(model, tmp_path, "ENABLE_EXTENDED")
    assert "DequantizeLinear" not in made
    assert made.count("MatMulNBits") == (0 if case == "table" else 1)


def test_two_products_of_one_weight_load_in_the_standard_form(tmp_path: Path) -> None:
    text = """g (float[n,64] x) => (float[n,48] y) {
      a = MatMul(x, w)
      s = Sin(x)
      b = MatMul(s, w)
      y = Sub(a, b)
    }"""
    model = model_of(head(text), {"w": normal(64, 48)})
    Int4Weights(form="qdq").apply(model, {})
    assert optimized(model, tmp_path, "ENABLE_EXTENDED").count("MatMulNBits") == 2


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_tied_table_is_stored_once_by_onnxruntimes_operators(
    step: Int4Weights | Int8Weights,
) -> None:
    model = model_of(head(CASES["tied"][0]), {"t": normal(100, 128)})
    step.apply(model, {})
    bits = 4 if isinstance(step, Int4Weights) else 8
    spec = BlockSpec(bits, 32, step.symmetric)  # type: ignore[arg-type]
    held = [v.const_value for v in model.graph.initializers.values() if v.const_value.size > 99]
    once = stored_bytes(spec, 100, 128)
    copies = 2 if step.form == "qdq" else 1
    assert sum(tensor.nbytes for tensor in held) == copies * once
    assert ("stored twice" in edit.take_notes(model)) is (copies == 2)


def test_a_table_alone_is_read_by_the_runtimes_own_look_up() -> None:
    text, weights, _ = CASES["table"]
    model = model_of(head(text), weights)
    Int4Weights().apply(model, {})
    assert ops(model) == ["GatherBlockQuantized"]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("case", ["matmul", "table", "tied"])
def test_rows_that_are_no_multiple_of_a_block_are_padded(case: str, symmetric: bool) -> None:
    text, weights, feed = CASES[case]
    text, name = text.replace("64]", "50]"), weight(case)[0]
    cut = weights[name][:50] if case == "matmul" else weights[name][:, :50]
    feed = {"x": feed["x"][..., :50]} if "x" in feed else feed
    model = model_of(head(text), {name: np.ascontiguousarray(cut)})
    wanted = unchecked(model, feed, "ENABLE_BASIC")[0]
    step = Int8Weights(form="nbits", block=32, accuracy_level=0, symmetric=symmetric)
    assert step.apply(model.clone(), {}) == 1
    step.apply(model, {})
    assert snr(wanted, unchecked(model, feed, "ENABLE_BASIC")[0]) > 35
    four = model_of(head(text), {name: np.ascontiguousarray(cut)})
    Int4Weights(accuracy_level=0, symmetric=symmetric).apply(four, {})
    assert 12 < snr(wanted, unchecked(four, feed, "ENABLE_BASIC")[0]) < 35
    if case == "matmul":
        with pytest.raises(Refused, match="not a multiple of block=32"):
            Int4Weights(form="qdq").apply(
                model_of(head(text), {name: np.ascontiguousarray(cut)}), {}
            )


def test_weights_in_bodies_and_constant_nodes() -> None:
    model = model_of(
        head("""g (float[n,32] x, bool c) => (float[n,32] y) {
          y = If(c) <
            then_branch = t () => (float[n,32] p) { k = Identity(w) p = MatMul(x, k) },
            else_branch = e () => (float[n,32] q) { q = Neg(x) }>
        }"""),
        {"w": normal(32, 32)},
    )
    body = model.graph[0].attributes["then_branch"].as_graph()
    held = ir.node("Constant", [], {"value": ir.tensor(normal(32, 32, seed=5))})
    held.outputs[0].name, held.outputs[0].type = "held", ir.TensorType(ir.DataType.FLOAT)
    body.insert_before(body[0], held)
    next(n for n in body if n.op_type == "MatMul").replace_input_with(1, held.outputs[0])
    feed = {"x": normal(2, 32), "c": np.array(True)}
    before = unchecked(model, feed, "ENABLE_BASIC")[0]
    assert Int4Weights().apply(model, {}) == 1
    assert [n.op_type for n in body if n.op_type != "Identity"] == ["MatMulNBits"]
    assert snr(before, unchecked(model, feed, "ENABLE_BASIC")[0]) > 12


@pytest.mark.parametrize("step", [Int4Weights(form="qdq"), Int8Weights(form="qdq", block=32)])
def test_weights_of_bodies_load_in_the_standard_form(
    step: Int4Weights | Int8Weights, tmp_path: Path
) -> None:
    model = model_of(
        head("""g (float[n,32] x, bool c) => (float[n,32] y) {
          y = If(c) <
            then_branch = t () => (float[n,32] p) { p = Gemm(x, w) },
            else_branch = e () => (float[n,32] q) { q = Neg(x) }>
        }"""),
        {"w": normal(32, 32)},
    )
    feed = {"x": normal(2, 32), "c": np.array(True)}
    before = unchecked(model, feed, "ENABLE_BASIC")[0]
    step.apply(model, {})
    onnx.checker.check_model(ir.to_proto(model))
    assert snr(before, unchecked(model, feed, "ENABLE_ALL")[0]) > 12


def test_float16_models_keep_their_type() -> None:
    text, weights, feed = CASES["tied"]
    half = {name: array.astype(np.float16) for name, array in weights.items()}
    model = model_of(head(text.replace("float[", "float16[")), half)
    before = unchecked(model, feed, "ENABLE_BASIC")[0]
    Int4Weights(accuracy_level=0).apply(model, {})
    after = unchecked(model, feed, "ENABLE_BASIC")[0]
    assert after.dtype == np.float16 and snr(before, after) > 12


SKIPPED = """g (float[n,64] x, double[n,64] d, float[64,n] u) =>
  (float[n,64] y, double[n,64] z, float[n,8] q, float[n,64] r, float[64,n] l, float[n,n] a) {
  y = MatMul(x, tall)
  z = MatMul(d, wide)
  q = MatMul(x, small)
  r = Gemm<transA = 1>(u, w)
  l = MatMul(w, u)
  a = MatMul(x, u)
}"""


def test_nothing_to_do_is_said_with_every_reason() -> None:
    weights = {
        "tall": normal(1, 64, 64),
        "wide": normal(64, 64).astype(np.float64),
        "small": normal(64, 8),
        "w": normal(64, 64),
    }
    model = model_of(head(SKIPPED.replace("float[n,64] y", "float[1,n,64] y")), weights)
    with pytest.raises(Refused) as refused:
        Int4Weights().apply(model, {})
    for reason in (
        "1 MatMul with a constant of 3 dimensions",
        "1 MatMul with double weights",
        "1 MatMul with a weight under 1,024 elements",
        "1 Gemm with transA",
        "1 MatMul with the weight on the left",
        "1 MatMul of two activations",
    ):
        assert reason in refused.value.what
    nothing = model_of(head("g (float[n] x) => (float[n] y) { y = Relu(x) }"))
    with pytest.raises(Refused, match="no MatMul, Gemm, Gather reads one"):
        Int4Weights().apply(nothing, {})


TWO = "g (float[n,64] x) => (float[n,64] y) { h = MatMul(x, w) y = MatMul(h, v) }"


def test_names_choose_nodes() -> None:
    for step, left in (
        (Int4Weights(exclude=("first*",)), "w"),
        (Int4Weights(include=("sec?nd",)), "w"),
        (Int8Weights(include=("sec?nd",)), "w"),
        (Int8Weights(form="nbits", exclude=("second",)), "v"),
    ):
        model = model_of(head(TWO), {"w": normal(64, 64), "v": normal(64, 64)})
        model.graph[0].name, model.graph[1].name = "first", "second"
        assert step.apply(model, {}) == 1
        assert {"w", "v"} & set(model.graph.initializers) == {left}
    for bad in (Int4Weights(exclude=("third",)), Int8Weights(include=("third",))):
        model = model_of(head(TWO), {"w": normal(64, 64), "v": normal(64, 64)})
        with pytest.raises(BadSettings, match="third"):
            bad.apply(model, {})


def test_a_convolutional_network_is_told_why_it_has_nothing_to_do() -> None:
    model = model_of(head("g (float[1,4,8,8] x) => (float[1,8,6,6] y) { y = Conv(x, w) }"))
    with pytest.raises(Refused, match="no kernel for weights in blocks: 1 convolution"):
        Int4Weights().apply(model, {})


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        (Int4Weights, {"accuracy_level": 5}),
        (Int4Weights, {"damping": 0.0}),
        (Int8Weights, {"form": "nbits", "fold": True}),
        (Int8Weights, {"method": "hqq"}),
    ],
)
def test_settings_without_meaning_are_refused(step: type, fields: dict) -> None:
    with pytest.raises(BadSettings):
        step(**fields)


def test_gptq_asks_for_its_layers_and_uses_what_it_is_told() -> None:
    x = normal(400, 8) @ normal(8, 64, seed=4) + 0.1 * normal(400, 64, seed=5)
    model = model_of(head(CASES["matmul"][0]), CASES["matmul"][1])
    step = Int4Weights(method="gptq", accuracy_level=0)
    assert [probe.tensor for probe in step.probes(model)] == ["x"]
    assert not Int4Weights().probes(model)
    second = (x.T @ x / 400).astype(np.float64)[None]
    seen = {"x": Range(-1, 1, moments=Moments(400, x.mean(axis=0)[None], second))}
    feed = {"x": x[None]}
    wanted = unchecked(model, feed, "ENABLE_BASIC")[0]
    found = []
    for method, ranges in (("hqq", {}), ("gptq", seen)):
        one = model.clone()
        Int4Weights(method=method, accuracy_level=0).apply(one, ranges)  # type: ignore[arg-type]
        found.append(snr(wanted, unchecked(one, feed, "ENABLE_BASIC")[0]))
    assert found[1] > found[0] + 3
    with pytest.raises(BadData, match="'x' were not observed"):
        step.apply(model.clone(), {})
    never = {"x": Range(0, 0, moments=Moments(0, np.zeros((1, 0)), np.zeros((1, 0, 0))))}
    step.apply(model, never)
    assert "no sample reaches" in edit.take_notes(model)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_file_is_as_large_as_computed(step: Int4Weights | Int8Weights, tmp_path: Path) -> None:
    text = TWO.replace("64", "256")
    model = model_of(head(text), {"w": normal(256, 256), "v": normal(256, 256, seed=1)})
    step.apply(model, {})
    path = file.save(model, tmp_path / "small.onnx")
    bits = 4 if isinstance(step, Int4Weights) else 8
    spec = BlockSpec(bits, 32, step.symmetric)  # type: ignore[arg-type]
    wanted = 2 * stored_bytes(spec, 256, 256)
    held = sum(v.const_value.nbytes for v in file.load(path).graph.initializers.values())
    assert held == wanted and wanted < path.stat().st_size < wanted + 2500


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_product_behind_another_reads_what_now_makes_its_input(
    step: Int4Weights | Int8Weights,
) -> None:
    model = model_of(
        head(TWO.replace("64", "256")), {"w": normal(256, 256), "v": normal(256, 256, seed=1)}
    )
    step.apply(model, {})
    for node in model.graph:
        makers = [value.producer() for value in node.inputs if value is not None]
        assert all(maker is None or maker.graph is model.graph for maker in makers)
        assert all(value is None or value.name for value in node.inputs)
        known = {*model.graph.inputs, *model.graph.initializers.values()}
        free = [v for v in node.inputs if v is not None and v.producer() is None]
        assert all(value in known for value in free)


def top_fields(data: bytes) -> list[int]:
    """Return the field numbers of a serialized message, in the order of the bytes."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value, at

    found, at = [], 0
    while at < len(data):
        key, at = varint(at)
        size, at = varint(at)
        found.append(key >> 3)
        at += size if key & 7 == 2 else 0
    return found


def test_the_graph_comes_before_the_opsets_of_two_domains(tmp_path: Path) -> None:
    """OpenVINO takes a file for another format if a field comes twice among the first three."""
    text, weights, _ = CASES["matmul"]
    model = model_of(head(text), weights)
    Int4Weights().apply(model, {})
    assert len(model.opset_imports) == 2
    fields = top_fields(file.save(model, tmp_path / "m.onnx").read_bytes())
    assert fields == sorted(fields) and fields.count(8) == 2


def test_the_head_is_left_to_the_step_behind() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (int64[b,s] ids) => (float[b,s,200] y, float[b,s,64] kept) {
      x = Gather(t, ids)
      kept = MatMul(x, w1)
      z = MatMul(kept, w2)
      y = MatMul(z, head)
    }"""
    held = {"t": normal(200, 64), "w1": normal(64, 64, seed=1), "w2": normal(64, 64, seed=2)}
    model = model_of(text, held | {"head": normal(64, 200, seed=3)})
    Int4Weights(head=False).apply(model, {})
    assert ops(model).count("MatMulNBits") == 2
    assert "1 last product" in edit.take_notes(model)
    Int8Dynamic().apply(model, {})
    assert ops(model).count("MatMulInteger") == 1 and "MatMul" not in ops(model)
    plain = model_of(text, held | {"head": normal(64, 200, seed=3)})
    wanted, found = (unchecked(m, {"ids": IDS}, "ENABLE_ALL")[0] for m in (plain, model))
    assert snr(wanted, found) > 12
