"""Simplify: less graph, same numbers, on shapes at the edge."""

import time

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import leaves, model_of, normal, ops, transformed

from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.ir import edit
from ortune.transforms.simplify import Simplify

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


@pytest.mark.parametrize(
    "body",
    [
        "{ y = Identity(x) }",
        "{ t = Identity(x) y = Relu(t) }",
        "{ t = Relu(x) y = Identity(t) }",
        "{ t = Dropout(x) y = Relu(t) }",
        "{ t = Cast<to = 1>(x) y = Relu(t) }",
        "{ t = CastLike(x, x) y = Relu(t) }",
        "{ t = Transpose<perm = [0, 1, 2]>(x) y = Relu(t) }",
        "{ a = Transpose<perm = [1, 0, 2]>(x) t = Transpose<perm = [1, 0, 2]>(a) y = Relu(t) }",
        "{ t = Reshape(x, same) y = Relu(t) }",
        "{ t = Reshape(x, keep) y = Relu(t) }",
        "{ s = Shape(x) t = Reshape(x, s) y = Relu(t) }",
        "{ s = Shape(x) t = Expand(x, s) y = Relu(t) }",
        "{ t = Expand(x, ones) y = Relu(t) }",
        "{ t = Pad(x, zeros) y = Relu(t) }",
        "{ t = Slice(x, zero, far) y = Relu(t) }",
        "{ t = Slice(x, zero, four, two) y = Relu(t) }",
        "{ t = Concat<axis = 1>(x) y = Relu(t) }",
        "{ t = Sum(x) y = Relu(t) }",
        "{ t = Split<axis = 1>(x) y = Relu(t) }",
        "{ t = Add(x, nil) y = Relu(t) }",
        "{ t = Add(nil, x) y = Relu(t) }",
        "{ t = Sub(x, nil) y = Relu(t) }",
        "{ t = Mul(one, x) y = Relu(t) }",
        "{ t = Div(x, one) y = Relu(t) }",
        "{ t = Pow(x, one) y = Relu(t) }",
    ],
)
def test_what_does_nothing_is_dropped(body: str) -> None:
    text = f"""{HEAD} g (float[n, 3, 4] x) => (float[n, 3, 4] y)
        <int64[3] same = {{0, 3, 4}}, int64[3] keep = {{-1, 3, 4}}, int64[1] zero = {{0}},
         int64[1] far = {{9223372036854775807}}, int64[1] four = {{4}}, int64[1] two = {{2}},
         int64[2] ones = {{1, 1}}, int64[6] zeros = {{0, 0, 0, 0, 0, 0}},
         float[1] nil = {{0}}, float one = {{1}}> {body}"""
    model, count = transformed(text, Simplify(), [{"x": normal(n, 3, 4)} for n in (1, 2, 0)])
    assert count > 0
    assert ops(model) in ({"Relu": 1}, {"Identity": 1})


@pytest.mark.parametrize(
    "body",
    [
        "{ y = Identity(x) }",  # an input may not be an output itself
        "{ y = Cast<to = 11>(x) }",
        "{ y = Transpose<perm = [1, 0]>(x) }",
        "{ y = Reshape(x, flat) }",
        "{ y = Expand(x, wide) }",
        "{ y = Pad(x, some) }",
        "{ y = Slice(x, first, far, first) }",
        "{ y = Add(x, wider) }",
        "{ y = Mul(x, two) }",
        "{ y = Sub(nil, x) }",
        "{ y = Div(one, x) }",
    ],
)
def test_what_does_something_stays(body: str) -> None:
    kind = "double" if "to = 11" in body else "float"
    text = f"""{HEAD} g (float[n, m] x) => ({kind} y)
        <int64[1] flat = {{-1}}, int64[2] wide = {{2, 1}}, int64[4] some = {{0, 0, 0, 1}},
         int64[1] first = {{1}}, int64[1] far = {{9223372036854775807}},
         float[1, 1, 1] wider = {{0}}, float one = {{1}}, float nil = {{0}}, float two = {{2}}>
        {body}"""
    before = model_of(text)
    before.graph.outputs[0].shape = None
    leaves(ops(before), before, Simplify(), [{"x": normal(1, 3) + 5}, {"x": normal(1, 1)}])


def test_constants_are_folded_and_named_outputs_kept() -> None:
    text = f"""{HEAD} g (float[n, 2] x) => (float[n, 2] y, float[2] c) {{
        a = Constant<value = float[2] {{1, 2}}>()
        b = Constant<value = float {{3}}>()
        c = Add(a, b)
        d = Sqrt(c)
        y = Mul(x, d) }}"""
    model = leaves({"Add": 1, "Mul": 1}, text, Simplify(), [{"x": normal(3, 2)}])
    assert [value.name for value in model.graph.outputs] == ["y", "c"]


def test_scalars_stay_scalars() -> None:
    """A rank that changes where it does not matter breaks the runtime's own rewrites later."""
    text = f"""{HEAD} g (int64[n, 2] ids, float[k, 4] past) => (float[m, 4] y)
        <float[9, 4] table = {{{", ".join(map(str, range(36)))}}}, int64 one = {{1}},
         int64 zero = {{0}}> {{
        s = Shape(ids) step = Gather(s, one) p = Shape(past) from = Gather(p, zero)
        to = Add(from, step) r = Range(from, to, one) y = Gather(table, r) }}"""
    feeds = [
        {"ids": np.zeros((2, 2), np.int64), "past": normal(5, 4)},
        {"ids": np.zeros((2, 2), np.int64), "past": normal(0, 4)},
    ]
    model, count = transformed(text, Simplify(), feeds)
    assert count > 0
    folded = [v for v in model.graph.initializers.values() if v.name and "folded" in v.name]
    assert [tuple(v.const_value.shape) for v in folded if v.const_value is not None] == [()]


def test_shape_arithmetic_of_attention_goes() -> None:
    text = f"""{HEAD} g (float[b, s, 12] x) => (float[b, s, 12] y)
        <int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] at = {{0}}, int64[1] h = {{3}},
         int64[1] d = {{4}}> {{
        s0 = Shape(x) b0 = Gather(s0, i0) bu = Unsqueeze(b0, at)
        s1 = Shape(x) b1 = Gather(s1, i1) su = Unsqueeze(b1, at)
        to = Concat<axis = 0>(bu, su, h, d)
        r = Reshape(x, to) t = Transpose<perm = [0, 2, 1, 3]>(r)
        e = Exp(t) u = Transpose<perm = [0, 2, 1, 3]>(e)
        s2 = Shape(u) b2 = Gather(s2, i0) c2 = Unsqueeze(b2, at)
        s3 = Shape(u) b3 = Gather(s3, i1) c3 = Unsqueeze(b3, at)
        hd = Mul(h, d) back = Concat<axis = 0>(c2, c3, hd)
        y = Reshape(u, back) }}"""
    leaves(
        {"Reshape": 2, "Transpose": 2, "Exp": 1},
        text,
        Simplify(),
        [{"x": normal(2, 5, 12)}, {"x": normal(1, 1, 12)}],
    )


def test_a_name_that_is_not_the_source_s_is_not_copied() -> None:
    text = f"""{HEAD} g (float[a, b] x, float[b, a] z) => (float[c, d] y) {{
        s = Shape(z) y = Reshape(x, s) }}"""
    model, _ = transformed(text, Simplify(), [{"x": normal(2, 3), "z": normal(3, 2)}], tolerance=0)
    assert ops(model)["Reshape"] == 1


def test_an_if_that_is_known_gives_way_to_its_branch() -> None:
    text = f"""{HEAD} g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
        <int64 two = {{2}}> {{
        s = Shape(x) r = Size(s) c = Equal(r, two)
        y, z = If(c) <
          then_branch = t () => (float[2, 3] p, float[2, 3] q) {{
            k = Constant<value = float {{4}}>() p = Mul(x, k) q = Identity(x) }},
          else_branch = e () => (float[2, 3] u, float[2, 3] v) {{ u = Neg(x) v = Neg(x) }}> }}"""
    model = leaves({"Mul": 1, "Identity": 1}, text, Simplify(), [{"x": normal(2, 3)}])
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_bodies_are_simplified_too() -> None:
    text = f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{
        y = If(c) <
          then_branch = t () => (float[n] p) {{
            k = Constant<value = float {{4}}>() r = Sqrt(k) i = Identity(x) p = Mul(i, r) }},
          else_branch = e () => (float[n] q) {{ d = Dropout(x) q = Neg(d) }}> }}"""
    feeds = [{"x": normal(3), "c": np.array(c)} for c in (True, False)]
    leaves({"If": 1, "Mul": 1, "Neg": 1}, text, Simplify(), feeds)


def test_equal_weights_are_stored_once() -> None:
    text = f"""{HEAD} g (float[n, 2] x) => (float[n, 2] y)
        <float[2] a = {{1, 2}}, float[2] b = {{1, 2}}, float[2] c = {{1, 3}},
         float[1, 2] d = {{1, 2}}, double[2] unused = {{1, 2}}> {{
        t = Mul(x, a) u = Mul(t, b) v = Mul(u, c) y = Mul(v, d) }}"""
    model, _ = transformed(text, Simplify(), [{"x": normal(3, 2)}])
    assert sorted(model.graph.initializers) == ["a", "c", "d"]


def test_weights_that_an_exporter_listed_as_inputs_become_constants() -> None:
    text = f"""{HEAD} g (float[n, 2] x, float[2] a, float[2] b) => (float[n, 2] y)
        <float[2] a = {{1, 2}}, float[2] b = {{3, 4}}> {{
        t = Add(a, b) y = Mul(x, t) }}"""
    model = leaves({"Mul": 1}, text, Simplify(), [{"x": normal(3, 2)}])
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_a_default_among_true_weights_is_not_folded() -> None:
    text = f"""{HEAD} g (float[n, 2] x, float scale) => (float[n, 2] y)
        <float scale = {{1}}, float[2] a = {{1, 2}}, float[2] b = {{3, 4}},
         float[2] c = {{5, 6}}> {{
        r = Sqrt(scale) t = Mul(x, r) u = Mul(t, scale) v = Add(u, a) w = Add(v, b)
        y = Add(w, c) }}"""
    leaves(
        {"Sqrt": 1, "Mul": 2, "Add": 3},
        text,
        Simplify(),
        [{"x": normal(3, 2)}, {"x": normal(3, 2), "scale": np.array(4, np.float32)}],
    )


def test_random_numbers_are_drawn_in_every_run() -> None:
    text = f"""{HEAD} g (float[4] x) => (float[4] y) <float[4] half = {{0.5, 0.5, 0.5, 0.5}}> {{
        r = RandomNormalLike(half) b = Bernoulli(half) t = Add(r, b) z = Mul(t, x)
        y = Sub(z, z) }}"""
    model, _ = transformed(text, Simplify(), [{"x": normal(4)}])
    assert ops(model)["RandomNormalLike"] == 1 and ops(model)["Bernoulli"] == 1


def test_the_file_does_not_grow_by_a_large_result() -> None:
    text = f"""{HEAD} g (float[n] x) => (float[m] y)
        <float[1] one = {{2}}, int64[1] many = {{100000}}> {{
        big = Expand(one, many) y = Mul(x, big) }}"""
    before = model_of(text)
    leaves({"Expand": 1, "Mul": 1}, before, Simplify(), [{"x": normal(1)}])


@pytest.mark.parametrize("where", ["the graph", "a body"])
def test_many_small_results_together_have_a_bound(where: str) -> None:
    nodes = " ".join(f"c{i} = Tile(v{i}, many) x{i + 1} = Mul(x{i}, c{i})" for i in range(40))
    weights = ", ".join(f"float[1] v{i} = {{{i + 2}}}" for i in range(40))
    weights = f"<{weights}, int64[1] many = {{16000}}>"
    last = "y = Identity(x40)"
    inside = f"""y = If(c) <
        then_branch = t () => (float[n] u) {{ x0 = Neg(x) {nodes} u = Identity(x40) }},
        else_branch = f () => (float[n] v) {{ v = Abs(x) }}>"""
    body = f"x0 = Neg(x) {nodes} {last}" if where == "the graph" else inside
    text = f"{HEAD} g (float[n] x, bool c) => (float[n] y) {weights} {{ {body} }}"
    feeds = {"x": normal(1), "c": np.array(True)}
    after, _ = transformed(text, Simplify(), [feeds])
    stored = count_weight_bytes(after)
    assert (1 << 19) < stored < (1 << 20) + (1 << 12) and ops(after)["Tile"] >= 24
    assert "would make the file grow" in edit.take_notes(after)


def test_a_weight_is_transposed_once_when_nothing_else_reads_it() -> None:
    text = f"""{HEAD} g (float[n, 300] x) => (float[n, 300] y, float[300, 300] z) {{
        t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)
        u = Transpose<perm = [1, 0]>(v) z = MatMul(v, u) }}"""
    model = model_of(text.replace("{\n", "<float[1] w = {1}, float[1] v = {1}> {\n", 1))
    for name in ("w", "v"):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(normal(300, 300), name=name)
        value.shape = ir.Shape([300, 300])
    after, _ = transformed(model, Simplify(), [{"x": normal(2, 300)}], tolerance=1e-5)
    # v is read twice: its transpose would be a second copy.
    assert ops(after) == {"MatMul": 2, "Transpose": 1}


def test_a_second_run_finds_nothing() -> None:
    text = f"""{HEAD} g (float[b, 3] x) => (float[b, 3] y) {{
        s = Shape(x) r = Reshape(x, s) k = Constant<value = float {{4}}>() q = Sqrt(k)
        y = Mul(r, q) }}"""
    model = model_of(text)
    assert Simplify().apply(model) > 0
    assert Simplify().apply(model) == 0


def test_an_old_opset_that_broadcasts_by_attribute() -> None:
    text = """<ir_version: 3, opset_import: ["": 6]>
        g (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[3] a = {0, 0, 0}, float[1] z = {0}> {
        s = Add<broadcast = 1, axis = 1>(x, a) t = Add<broadcast = 1>(s, z) y = Relu(t) }"""
    model = model_of(text)
    assert Simplify().apply(model) > 0
    assert ops(model) == {"Add": 1, "Relu": 1}


def test_an_old_opset_that_reshapes_by_attribute() -> None:
    text = """<ir_version: 8, opset_import: ["": 4]>
        g (float[2,3] x) => (float[3,2] y) {
          s = Reshape <shape = [6]>(x) t = Reshape <shape = [3, 2]>(s)
          y = Reshape <shape = [3, 2]>(t) }
        """
    transformed(model_of(text), Simplify(), [{"x": normal(2, 3)}])


def test_names_of_the_nodes_that_stay_are_kept() -> None:
    text = f"""{HEAD} g (float[n] x) => (float[n] y) {{
        [first] t = Identity(x) [second] y = Relu(t) }}"""
    model = model_of(text)
    Simplify().apply(model)
    assert [node.name for node in edit.walk_nodes(model)] == ["second"]


def test_a_slice_of_which_nothing_is_known_stays() -> None:
    text = f"""{HEAD} g (float[5] x, int64[1] from, int64[1] to) => (float[m] y) {{
        t = Slice(x, from, to) y = Relu(t) }}"""
    feed = {"x": normal(5), "from": np.array([1]), "to": np.array([3])}
    leaves({"Slice": 1, "Relu": 1}, text, Simplify(), [feed])


@pytest.mark.parametrize(
    "body",
    [
        "{ e = Expand(x, to) a = Sigmoid(e) y = Add(a, e) }",
        "{ e = Expand(x, to) a = Sigmoid(e) b = Add(e, a) c = Neg(b) y = Mul(c, b) }",
    ],
)
def test_an_expand_whose_readers_meet_again_stays(body: str) -> None:
    """Each reader alone would be broadcast by the other; narrow both, and nothing is wide."""
    text = f"{HEAD} g (float[1, 4] x) => (float[3, 4] y) <int64[2] to = {{3, 4}}> {body}"
    model, _ = transformed(text, Simplify(), [{"x": normal(1, 4)}])
    assert ops(model)["Expand"] == 1


def test_positions_that_wrap_around_are_not_taken_for_positive() -> None:
    text = f"""{HEAD} g (bool[n] c) => (bool[n] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 most = {{9223372036854775807}}> {{
        s = Shape(c) n = Gather(s, zero) r = Range(zero, n, one) p = Add(r, most)
        b = GreaterOrEqual(p, zero) a = And(b, c) y = Not(a) }}"""
    model, _ = transformed(text, Simplify(), [{"c": np.ones(4, bool)}])
    assert ops(model)["And"] == 1


def test_positions_added_to_themselves_are_followed_once() -> None:
    """Walked anew from each reader, thirty of these would take hours."""
    doubled = " ".join(f"d{i} = Add(d{i - 1}, d{i - 1})" for i in range(1, 41))
    text = f"""{HEAD} g (bool[n] c) => (bool[n] y) <int64 zero = {{0}}, int64 one = {{1}}> {{
        s = Shape(c) n = Gather(s, zero) d0 = Range(zero, n, one) {doubled}
        b = GreaterOrEqual(d40, zero) y = And(b, c) }}"""
    began = time.process_time()
    Simplify().apply(model_of(text))
    assert time.process_time() - began < 5
