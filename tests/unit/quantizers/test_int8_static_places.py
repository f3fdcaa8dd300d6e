"""Static int8 in bodies, on tied weights, tables and Constant nodes; patterns, 16 bits, notes."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, ops, optimized, quantize, run, snr

from ortune.core.errors import BadSettings, Refused
from ortune.core.observer import Range
from ortune.graph.ir import edit
from ortune.quantizers.int8_static import Int8Static

IDS = np.array([[1, 5, 0, 7], [63, 2, 9, 9]])

LM = """<ir_version: 8, opset_import: ["": 17]>
g (int64[b,s] ids) => (float[b,s,64] y) {
  rows = Gather(table, ids)
  h = MatMul(rows, w)
  t = Tanh(h)
  turned = Transpose<perm = [1, 0]>(table)
  y = MatMul(t, turned)
}"""
LM_WEIGHTS = {"table": normal(64, 32), "w": normal(32, 32, seed=1, scale=0.2)}

BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,4,8,8] x, bool c) => (float[b,4,8,8] y) {
  a = Neg(x)
  y = If(c) <
    then_branch = t () => (float[b,4,8,8] p) {
      kernel = Constant<value = float[4,4,1,1] {
        1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, -5, -6, -7, -8}>()
      first = Conv(a, kernel)
      act = Relu(first)
      p = Conv(act, outer)
    },
    else_branch = e () => (float[b,4,8,8] q) { q = Conv(a, outer) }>
}"""
OUTER = {"outer": normal(4, 4, 1, 1)}


def elements(model: ir.Model) -> Counter[ir.DataType]:
    """Count the elements of all weights by type."""
    found: Counter[ir.DataType] = Counter()
    for graph in edit.walk_graphs(model):
        for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
            found[value.const_value.dtype] += value.const_value.size
        for node in graph:
            tensor = edit.const_tensor(node.outputs[0]) if node.op_type == "Constant" else None
            if tensor is not None:
                found[tensor.dtype] += tensor.size
    return found


def named(model: ir.Model) -> ir.Model:
    """Name each node by its first output."""
    for node in model.graph:
        node.name = f"n_{node.outputs[0].name}"
    return model


def body_ranges() -> dict[str, Range]:
    """Return the ranges of the tensors on the inputs that the tests use."""
    return {"a": Range(-3.1, 3.1), "act": Range(0, 28), "p": Range(-36, 43), "q": Range(-5.6, 5.6)}


def test_layers_in_bodies_are_integer_there(tmp_path: Path) -> None:
    model = model_of(BRANCHES, OUTER)
    before = [run(model, {"x": normal(1, 4, 8, 8), "c": np.array(c)})[0] for c in (True, False)]
    assert Int8Static(reduce_range=True).apply(model, body_ranges()) == 3
    after = [run(model, {"x": normal(1, 4, 8, 8), "c": np.array(c)})[0] for c in (True, False)]
    assert all(snr(a, b) > 28 for a, b in zip(before, after, strict=True))
    kinds = Counter(n.op_type for body in model.graph.subgraphs() for n in body)
    assert kinds["QuantizeLinear"] == 5
    held = elements(model)
    assert held[ir.DataType.INT8] >= 32
    assert held[ir.DataType.FLOAT] < 32, "the Constant in the body and the outer weight are gone"


def test_the_outer_weight_of_two_bodies_is_stored_once() -> None:
    model = model_of(BRANCHES, OUTER)
    Int8Static().apply(model, body_ranges())
    stored = [n for n in model.graph.initializers if n.startswith("outer_int")]
    assert stored == ["outer_int"]


def test_probes_name_the_tensors_of_bodies() -> None:
    names = {probe.tensor for probe in Int8Static().probes(model_of(BRANCHES, OUTER))}
    assert {"a", "act", "p", "q"} <= names


def test_a_body_that_the_data_does_not_reach_stays_in_float() -> None:
    model = model_of(BRANCHES, OUTER)
    ranges = {name: seen for name, seen in body_ranges().items() if name != "q"}
    assert Int8Static().apply(model, ranges) == 2
    said = edit.take_notes(model)
    reason = "have no range: the data leaves them unused or zero"
    assert said == f"1 of 3 layers left in float: those that {reason} (1)"
    x = {"x": normal(1, 4, 8, 8), "c": np.array(False)}
    assert np.array_equal(run(model, x)[0], run(model_of(BRANCHES, OUTER), x)[0])


def test_a_loop_body() -> None:
    model = model_of(
        """g (float[4,16] x) => (float[4,16] y) {
          times = Constant<value = int64 {3}>()
          go = Constant<value = bool {1}>()
          y = Loop(times, go, x) <body = b (int64 i, bool on, float[4,16] h) =>
            (bool on_out, float[4,16] out) {
              m = MatMul(h, w)
              out = Tanh(m)
              on_out = Identity(on)
            }>
        }""",
        {"w": normal(16, 16, scale=0.3)},
    )
    x = {"x": normal(4, 16)}
    before = run(model, x)[0]
    assert Int8Static().apply(model, {"h": Range(-4, 4)}) == 1
    assert 25 < snr(before, run(model, x)[0]) < 60


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    model = model_of(LM, LM_WEIGHTS)
    before = run(model, {"ids": IDS})[0]
    assert quantize(model, Int8Static(), [{"ids": IDS}]) == 2
    assert snr(before, run(model, {"ids": IDS})[0]) > 30
    held = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert sum(v.const_value.size == 64 * 32 for v in held) == 1
    assert "table" not in model.graph.initializers
    found = optimized(model, tmp_path)
    assert found.count("MatMulIntegerToFloat") == 2
    dequantized = [n.inputs[0] for n in model.graph if n.op_type == "DequantizeLinear"]
    gathers = [n for n in model.graph if n.op_type == "Gather"]
    assert all(g.inputs[0].producer() is None for g in gathers), "no DequantizeLinear before"
    assert gathers[0].outputs[0] in dequantized


def test_a_tied_table_that_is_to_be_looked_up_in_float_is_kept_twice_and_said() -> None:
    model = named(model_of(LM, LM_WEIGHTS))
    quantize(model, Int8Static(exclude=("n_rows",)), [{"ids": IDS}])
    assert "table" in model.graph.initializers
    assert "1 embedding table left in float" in edit.take_notes(model)


def test_a_table_of_its_own_stays_in_float_unless_asked() -> None:
    text = LM.replace("MatMul(t, turned)", "MatMul(t, other)").replace("  turned", "  unused")
    model = model_of(text, LM_WEIGHTS | {"other": normal(32, 64, seed=3)})
    quantize(model, Int8Static(), [{"ids": IDS}])
    assert "table" in model.graph.initializers
    assert "1 embedding table left in float" in edit.take_notes(model)


def test_an_untied_table_has_a_step_a_column() -> None:
    text = LM.replace("MatMul(t, turned)", "MatMul(t, other)").replace("  turned", "  unused")
    model = model_of(text, LM_WEIGHTS | {"other": normal(32, 64, seed=3)})
    before = run(model, {"ids": IDS})[0]
    quantize(model, Int8Static(embeddings=True), [{"ids": IDS}])
    gather = next(n for n in model.graph if n.op_type == "Gather")
    behind = next(iter(gather.outputs[0].uses())).node
    assert behind.op_type == "DequantizeLinear"
    assert behind.inputs[1].const_value.size == 32
    assert snr(before, run(model, {"ids": IDS})[0]) > 30


@pytest.mark.parametrize("kind", ["s8", "u8"])
@pytest.mark.parametrize("activations", ["s8", "u8"])
def test_every_pair_of_types(kind: str, activations: str, tmp_path: Path) -> None:
    model = model_of(LM, LM_WEIGHTS)
    before = run(model, {"ids": IDS})[0]
    step = Int8Static(weights=kind, activations=activations, embeddings=True)
    quantize(model, step, [{"ids": IDS}])
    assert snr(before, run(model, {"ids": IDS})[0]) > 30
    assert optimized(model, tmp_path).count("MatMulIntegerToFloat") == 2
    dtype = ir.DataType.INT8 if kind == "s8" else ir.DataType.UINT8
    assert model.graph.initializers["table_int"].dtype == dtype


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("activations", ["u8", "s8"])
def test_wide_activations(opset: int, activations: str) -> None:
    model = named(model_of(LM.replace('"": 17', f'"": {opset}'), LM_WEIGHTS))
    before = run(model, {"ids": IDS})[0]
    step = Int8Static(wide=("n_[hy]",), activations=activations)
    quantize(model, step, [{"ids": IDS}])
    narrow = model_of(LM, LM_WEIGHTS)
    quantize(narrow, Int8Static(activations=activations), [{"ids": IDS}])
    pairs = [n for n in model.graph if n.op_type == "QuantizeLinear"]
    assert {n.domain for n in pairs} == {"" if opset == 21 else "com.microsoft"}
    assert {n.outputs[0].dtype.itemsize for n in pairs} == {2}
    feed = {"ids": IDS}
    assert snr(before, run(model, feed)[0]) > snr(before, run(narrow, feed)[0]) + 2


def test_tensors_on_one_grid_are_wide_together() -> None:
    model = model_of(
        """g (float[1,4,8,8] x) => (float[1,4,4,4] y) {
          a = Conv(x, k)
          m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
          y = Conv(m, k)
        }""",
        {"k": normal(4, 4, 1, 1)},
    )
    for node in model.graph:
        node.name = node.op_type + str(node.outputs[0].name)
    quantize(model, Int8Static(wide=("MaxPool*",)), [{"x": normal(1, 4, 8, 8)}])
    sizes = {n.inputs[0].name: n.outputs[0].dtype for n in model.graph if "Quantize" in n.op_type}
    assert sizes["a"] == sizes["m"] == ir.DataType.UINT16
    assert sizes["x"] == ir.DataType.UINT8
    assert run(model, {"x": normal(1, 4, 8, 8)})[0].shape == (1, 4, 4, 4)


@pytest.mark.parametrize("target", ["tensorrt", "cuda"])
def test_gpus_get_signed_symmetric_integers(target: str) -> None:
    model = model_of(LM, LM_WEIGHTS)
    step = Int8Static(target=target, weights="u8")
    quantize(model, step, [{"ids": IDS}])
    zeros = [n.inputs[2].const_value for n in model.graph if "Quantize" in n.op_type]
    zeros += [n.inputs[2].const_value for n in model.graph if n.op_type == "DequantizeLinear"]
    assert {z.dtype for z in zeros} == {ir.DataType.INT8}
    assert all(not z.numpy().any() for z in zeros)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_in_groups(groups: int) -> None:
    model = model_of(
        f"""g (float[1,4,8,8] x) => (float[1,6,16,16] y) {{
          y = ConvTranspose<strides = [2,2], group = {groups}>(x, w, b)
        }}""",
        {"w": normal(4, 6 // groups, 2, 2), "b": normal(6)},
    )
    feed = {"x": normal(1, 4, 8, 8)}
    before = run(model, feed)[0]
    assert quantize(model, Int8Static(target="openvino"), [feed]) == 1
    assert snr(before, run(model, feed)[0]) > 30


def test_stacked_matrices_have_one_step() -> None:
    model = model_of(
        "g (float[3,s,16] x) => (float[3,s,24] y) { y = MatMul(x, w) }", {"w": normal(3, 16, 24)}
    )
    feed = {"x": normal(3, 5, 16)}
    before = run(model, feed)[0]
    quantize(model, Int8Static(), [feed])
    assert snr(before, run(model, feed)[0]) > 30


def test_include_and_regular_expressions() -> None:
    model = named(model_of(LM, LM_WEIGHTS))
    assert quantize(model, Int8Static(include=("re:n_[a-h]",)), [{"ids": IDS}]) == 1
    assert "1 of 2 layers left in float: those that are not included (1)" in edit.take_notes(model)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("n_q", "such as n_"), ("re:(", "not a regular expression"), ("rows*", "such as n_rows")],
)
@pytest.mark.parametrize("option", ["include", "exclude", "wide"])
def test_patterns_that_match_nothing(pattern: str, says: str, option: str) -> None:
    model = named(model_of(LM, LM_WEIGHTS))
    ranges = {"rows": Range(-3, 3), "t": Range(-1, 1)}
    with pytest.raises(BadSettings, match=option) as raised:
        Int8Static(**{option: (pattern,)}).apply(model, ranges)
    assert says in f"{raised.value.what} {raised.value.fix}"


def test_names_that_a_rewrite_took_away_may_be_excluded() -> None:
    model = model_of(
        """g (float[1,4,8,8] x) => (float[1,4,16,16] y) {
          a = Conv(x, k)
          n = Mul(a, two)
          y = ConvTranspose<strides = [2,2]>(n, w)
        }""",
        {"k": normal(4, 4, 1, 1), "w": normal(4, 4, 2, 2), "two": np.float32(2)},
    )
    for node in model.graph:
        node.name = f"n_{node.outputs[0].name}"
    step = Int8Static(exclude=("n_n", "n_y"))
    assert quantize(model, step, [{"x": normal(1, 4, 8, 8)}]) == 1
    assert ops(model).count("ConvTranspose") == 1, "an excluded layer is not rewritten"


def test_what_stays_in_float_is_counted_by_reason() -> None:
    model = model_of(
        """g (float[b,s,32] x) => (float[b,s,s] y, float[b,s,8] z) {
          a = MatMul(x, w)
          t = Transpose<perm = [0, 2, 1]>(a)
          y = MatMul(a, t)
          z = MatMul(a, small)
        }""",
        {"w": normal(32, 32), "small": normal(32, 8)},
    )
    quantize(model, Int8Static(), [{"x": normal(1, 3, 32)}])
    said = edit.take_notes(model)
    assert said.startswith("2 of 3 layers left in float: ")
    assert "multiply two activations (1)" in said
    assert "have a side shorter than 16 (1)" in said


def test_recurrent_layers_are_named() -> None:
    model = model_of(
        "g (float[s,b,16] x) => (float[s,1,b,16] y) { y = GRU<hidden_size = 16>(x, w, r) }",
        {"w": normal(1, 48, 16), "r": normal(1, 48, 16)},
    )
    with pytest.raises(Refused, match="no Conv"):
        quantize(model, Int8Static(), [{"x": normal(2, 1, 16)}])
    assert "1 GRU stay in float" in edit.take_notes(model)


def test_a_wholly_quantized_model_is_a_quarter() -> None:
    model = model_of(LM, LM_WEIGHTS)
    before = sum(v.const_value.nbytes for v in model.graph.initializers.values())
    quantize(model, Int8Static(embeddings=True), [{"ids": IDS}])
    tensors = [v.const_value for v in model.graph.initializers.values()]
    integers = sum(t.nbytes for t in tensors if t.dtype == ir.DataType.INT8)
    assert 0.25 <= integers / before <= 0.28
    big = model_of(
        "g (float[b,512] x) => (float[b,512] y) { h = MatMul(x, w) y = MatMul(h, v) }",
        {"w": normal(512, 512), "v": normal(512, 512, seed=1)},
    )
    before = sum(v.const_value.nbytes for v in big.graph.initializers.values())
    quantize(big, Int8Static(), [{"x": normal(2, 512)}])
    after = sum(v.const_value.nbytes for v in big.graph.initializers.values())
    assert 0.25 <= after / before <= 0.28


def test_a_refusal_says_why() -> None:
    model = model_of(LM, LM_WEIGHTS)
    with pytest.raises(
        Refused, match=r"2 of 2 layers left in float: those that have a side shorter than 40 \(2\)"
    ):
        quantize(model, Int8Static(min_side=40), [{"ids": IDS}])


ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,6,32] x) => (float[b,6,32] y, float[b,6,6] s) {
  q = MatMul(x, wq)
  k = MatMul(x, wk)
  v = MatMul(x, wv)
  t = Transpose<perm = [0, 2, 1]>(k)
  s = MatMul(q, t)
  p = Softmax(s)
  a = MatMul(p, v)
  y = MatMul(a, wo)
}"""
PROJECTIONS = {
    f"w{name}": normal(32, 32, seed=seed, scale=0.1) for seed, name in enumerate("qkvo")
}


def find_zero_points(model: ir.Model, name: str) -> list[tuple[str, int]]:
    """Return type and value of the zero points that a node reads through pairs."""
    node = next(node for node in model.graph if node.name == f"n_{name}")
    pairs = [value.producer() for value in node.inputs]
    zeros = [
        edit.const_array(pair.inputs[2])
        for pair in pairs
        if pair is not None and pair.op_type == "DequantizeLinear"
    ]
    return [(zero.dtype.name, int(zero)) for zero in zeros if zero.ndim == 0]


def test_products_of_two_activations_become_integer_with_zero_point_0() -> None:
    feeds = [{"x": normal(4, 6, 32, seed=9)}]
    model = named(model_of(ATTENTION, PROJECTIONS))
    wanted, scores = run(model, feeds[0])
    step = Int8Static(target="openvino", attention=True, exclude=("n_y",))
    quantize(model, step, feeds)
    assert find_zero_points(model, "s") == [("int8", 0), ("int8", 0)]
    assert find_zero_points(model, "a") == [("uint8", 0), ("int8", 0)]
    assert model.graph.outputs[1].producer().op_type == "MatMul", "the output stays float"
    answers = run(model, feeds[0])
    assert snr(wanted, answers[0]) > 25
    assert snr(scores, answers[1]) > 25


@pytest.mark.parametrize(
    ("settings", "products"),
    [
        ({"exclude": ("n_s",)}, {"a"}),
        ({"include": ("n_q", "n_s")}, {"s"}),
        ({"ops": ("Gemm", "MatMul")}, {"s", "a"}),
        ({"attention": False}, set()),
    ],
)
def test_which_products_of_two_activations_become_integer(
    settings: dict[str, object], products: set[str]
) -> None:
    feeds = [{"x": normal(1, 6, 32, seed=9)}]
    model = named(model_of(ATTENTION, PROJECTIONS))
    step = Int8Static(target="openvino", **{"attention": True} | settings)  # type: ignore[arg-type]
    quantize(model, step, feeds)
    assert {name for name in "sa" if len(find_zero_points(model, name)) == 2} == products


def test_a_factor_that_is_a_layers_input_too_is_not_smoothed() -> None:
    feeds = [{"x": normal(1, 6, 32, seed=9)}]
    text = ATTENTION.replace("s = MatMul(q, t)", "s = MatMul(x, t)")
    model = named(model_of(text, PROJECTIONS))
    wanted = run(model, feeds[0])[0]
    quantize(model, Int8Static(target="openvino", attention=True, smooth=0.75), feeds)
    assert find_zero_points(model, "s") == [("int8", 0), ("int8", 0)]
    assert snr(wanted, run(model, feeds[0])[0]) > 25


def test_other_targets_gain_nothing_from_integer_attention() -> None:
    with pytest.raises(BadSettings, match="cpu gains nothing") as caught:
        Int8Static(attention=True)
    assert "leave `attention` out" in str(caught.value)


def test_a_product_without_a_range_is_named() -> None:
    feeds = [{"x": normal(1, 6, 32, seed=9)}]
    weights = PROJECTIONS | {"wk": np.zeros((32, 32), np.float32)}
    model = named(model_of(ATTENTION, weights))
    quantize(model, Int8Static(target="openvino", attention=True), feeds)
    assert find_zero_points(model, "s") == []
    assert "1 of 6 layers left in float: those that have no range" in edit.take_notes(model)
