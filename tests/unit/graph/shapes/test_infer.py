"""The ladder of shape inference: what is declared stays, each rung fills what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnxruntime
import pytest
from tests.unit.rewriting import model_of

from ortune.graph.ir.edit import list_dims
from ortune.graph.shapes.infer import infer_graph, infer_shapes, list_unknown_values
from ortune.graph.shapes.known_values import SymbolicValues

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def shape(model: ir.Model, name: str) -> tuple[int | str | None, ...] | None:
    values = (value for node in model.graph.all_nodes() for value in node.outputs)
    return list_dims(next(value for value in values if value.name == name).shape)


def inferred(text: str) -> ir.Model:
    model = model_of(text)
    infer_shapes(model)
    return model


def test_a_complete_file_needs_no_rung() -> None:
    model = model_of(f"{HEAD} g (float[n] x) => (float[n] y) {{ y = Relu(x) }}")
    assert infer_shapes(model) == "file"


def test_node_by_node() -> None:
    model = model_of(f"{HEAD} g (float[n, 3] x) => (float[n, 3] y) {{ t = Relu(x) y = Neg(t) }}")
    assert list_unknown_values(model) == ["t"]
    assert infer_shapes(model) == "symbolic"
    assert shape(model, "t") == ("n", 3) and not list_unknown_values(model)


def test_names_are_carried_through_arithmetic() -> None:
    text = f"""{HEAD} g (float[b, s, 12] x) => (float[] y)
        <int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] at = {{0}}, int64[1] h = {{3}},
         int64[1] d = {{4}}, int64[1] neg = {{-1}}, int64[3] ones = {{1, 1, 1}}> {{
        sh = Shape(x) b0 = Gather(sh, i0) bu = Unsqueeze(b0, at)
        s0 = Gather(sh, i1) su = Unsqueeze(s0, at)
        to = Concat<axis = 0>(bu, su, h, d) r = Reshape(x, to)
        hd = Mul(h, d) rest = Concat<axis = 0>(bu, neg, hd) back = Reshape(r, rest)
        flat = Concat<axis = 0>(neg, hd) f = Reshape(r, flat)
        c = ConstantOfShape(to) first = Slice(sh, at, ones2) p = Expand(one, sh)
        eq = Equal(sh, minus) w = Where(eq, ones, sh) e = Expand(one, w) y = Relu(e) }}"""
    text = text.replace(
        "<int64 i0",
        "<float[1] one = {1}, int64[3] minus = {-1, -1, -1}, int64[1] ones2 = {2}, int64 i0",
    )
    model = inferred(text)
    assert shape(model, "r") == ("b", "s", 3, 4)
    assert shape(model, "back") == ("b", "s", 12)
    assert shape(model, "f") == (None, 12)
    assert shape(model, "c") == ("b", "s", 3, 4)
    assert shape(model, "p") == ("b", "s", 12)
    assert shape(model, "e") == ("b", "s", 12)


def test_arithmetic_in_floats_is_followed() -> None:
    """Exporters of padding that depends on the size compute in floats."""
    text = f"""{HEAD} g (float[n, 3, 225, 225] x) => (float[] y)
        <int64 i = {{2}}, float two = {{2}}, int64[1] at = {{0}}, int64[1] z = {{0}}> {{
        s = Shape(x) h = Gather(s, i) f = Cast<to = 1>(h) d = Div(f, two) c = Ceil(d)
        q = Cast<to = 7>(c) u = Unsqueeze(q, at) pads = Concat<axis = 0>(z, z, u, z, z, z, z, u)
        y = Pad(x, pads) }}"""
    assert shape(inferred(text), "y") == ("n", 3, 338, 338)


def test_branches_and_bodies() -> None:
    text = f"""{HEAD} g (float[n, 3] x, bool c) => (float[] y, float[] z) {{
        y = If(c) <
          then_branch = t () => (float[] p) {{ a = Relu(x) p = Identity(a) }},
          else_branch = e () => (float[] q) {{ q = Neg(x) }}>
        r = Scan<num_scan_inputs = 1, body = b (float[3] row) => (float[3] d) {{
          d = Neg(row) }}>(x)
        z = Relu(r) }}"""
    model = model_of(text)
    assert infer_shapes(model) == "onnx", "only onnx's own inference looks through Scan"
    assert shape(model, "a") == ("n", 3) and shape(model, "y") == ("n", 3)
    assert shape(model, "z") == ("n", 3)


def test_what_is_declared_is_kept() -> None:
    text = f"{HEAD} g (float[n, m] x) => (float[n, 7] y) {{ t = Relu(x) y = Relu(t) }}"
    model = inferred(text)
    assert shape(model, "y") == ("n", 7) and shape(model, "t") == ("n", "m")


CUSTOM = '<ir_version: 8, opset_import: ["": 17, "own": 1]>'


def runtime(names: list[str]) -> Mapping[str, tuple[str, Sequence[int]]]:
    assert names == ["t", "y"]
    return {"t": ("float32", (2, 5)), "y": ("float32", (2, 5))}


def test_a_run_fills_what_nothing_else_knows() -> None:
    model = model_of(f"{CUSTOM} g (float[2, 4] x) => (float[] y) {{ t = own.odd(x) y = Relu(t) }}")
    model.graph.outputs[0].shape = None
    assert infer_shapes(model) == "none"
    assert infer_shapes(model, runtime=runtime) == "runtime"
    assert shape(model, "t") == (2, 5)


def test_sizes_of_one_run_are_not_those_of_all() -> None:
    model = model_of(f"{CUSTOM} g (float[n, 4] x) => (float[] y) {{ t = own.odd(x) y = Relu(t) }}")
    model.graph.outputs[0].shape = None
    assert infer_shapes(model, runtime=runtime) == "runtime"
    assert shape(model, "t") == (None, None)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_slices_of_shapes(step: int) -> None:
    start, end = (-1, -(2**63) + 1) if step < 0 else (0, 2**63 - 1)
    text = f"""{HEAD} g (float[a, b, 4, 5] x) => (float[] y)
        <int64[1] from = {{{start}}}, int64[1] far = {{{end}}},
         int64[1] at = {{0}}, int64[1] by = {{{step}}}> {{
        s = Shape(x) t = Slice(s, from, far, at, by) c = ConstantOfShape(t) y = Neg(c) }}"""
    wanted: list[int | str] = ["a", "b", 4, 5]
    assert shape(inferred(text), "c") == tuple(wanted[::step])


def test_positions_cut_to_the_length_are_as_long_as_it() -> None:
    """x[:n] of 512 rows beside n others: n, in every run that is valid."""
    text = f"""{HEAD} g (float[b, n, 4] x, int64[b, n] ids) => (float[] y, float[] z)
        <float[1, 512, 4] table = {{{", ".join("0" * 2048)}}}, int64[1] zero = {{0}},
         int64[1] one = {{1}}, int64 at = {{1}}> {{
        s = Shape(ids) n = Gather(s, at) to = Unsqueeze(n, zero)
        rows = Slice(table, zero, to, one, one) y = Add(x, rows) z = Mul(rows, rows) }}"""
    model = inferred(text)
    assert shape(model, "y") == ("b", "n", 4)
    assert shape(model, "z") == (1, "min(n, 512)", 4)


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [
        ("n, 3", "n, 1", ("n", 3)),
        ("n, 3", "3", ("n", 3)),
        ("n, m", "m, n", (None, None)),
        ("n, 0", "n, m", ("n", 0)),
        ("n", "k, n", ("k", "n")),
        ("1, 1", "1", (1, 1)),
        ("n", "5", (5,)),
    ],
)
def test_names_are_broadcast(one: str, two: str, wanted: tuple[int | str | None, ...]) -> None:
    text = f"{HEAD} g (float[{one}] x, float[{two}] z) => (float[] y) {{ y = Add(x, z) }}"
    model = inferred(text)
    assert shape(model, "y") == wanted


def test_an_end_that_no_tensor_reaches_is_the_end_of_the_axis() -> None:
    text = f"""{HEAD} g (float[n, 512, 256] x) => (float[] y, float[] z)
        <int64[1] zero = {{0}}, int64[1] far = {{1000000000}}, int64[1] near = {{1000}}> {{
        y = Slice(x, zero, far, zero) z = Slice(x, zero, near, zero) }}"""
    model = inferred(text)
    assert shape(model, "y") == ("n", 512, 256) and shape(model, "z") == (None, 512, 256)


def test_made_up_names_give_way_to_real_ones() -> None:
    """Exporters leave what onnx's inference called unk__0 in their files."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (float[a,b] y) <float[unk__0,unk__1] t> { t = Relu(x)  y = Neg(t) }"""
    model = model_of(text)
    infer_graph(model.graph, model.opset_imports, SymbolicValues())
    assert list_dims(next(iter(model.graph)).outputs[0].shape) == ("n", 3)


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("int32", "<int32 a = {70000}> { y = Mul(a, a) }", 605032704),
        ("int64", "<int64 a = {1099511627776}> { y = Mul(a, a) }", 0),
        ("int64", "<int64 a = {4611686018427387904}> { y = Add(a, a) }", -(2**63)),
        ("int64", "<int64 a = {-9223372036854775808}, int64 b = {1}> {y = Sub(a, b)}", 2**63 - 1),
        ("int32", "<int64 a = {9223372036854775807}> { y = Cast<to = 6>(a) }", -1),
        ("int32", "<int64 a = {4294967301}> { y = Cast<to = 6>(a) }", 5),
        ("int32", "<int32 a = {-7}, int32 b = {2}> { y = Div(a, b) }", -3),
        ("int32", "<int32 a = {2147483647}, int32 b = {1}> { y = Add(a, b) }", -(2**31)),
        ("int32", "<int32 a = {-2147483648}, int32 b = {1}> { y = Sub(a, b) }", 2**31 - 1),
        ("int64", "<int64 a = {-9223372036854775808}> { y = Add(a, a) }", 0),
        ("int64", "<int64 a = {-9223372036854775808}, int64 b = {-1}> {y = Mul(a, b)}", -(2**63)),
        ("int64", "<int64 a = {3037000500}> { y = Mul(a, a) }", -9223372036709301616),
        ("int16", "<int64 a = {98304}> { y = Cast<to = 5>(a) }", -(2**15)),
        ("uint8", "<int64 a = {-1}> { y = Cast<to = 2>(a) }", 255),
        ("int8", "<int32 a = {200}> { y = Cast<to = 3>(a) }", -56),
        ("int32", "<int64 a = {-9223372036854775808}> { y = Cast<to = 6>(a) }", 0),
    ],
)
def test_integers_wrap_as_the_runtime_has_them(kind: str, body: str, expected: int) -> None:
    """The numbers were read from onnxruntime, which runs the model beside it again."""
    model = model_of(f"{HEAD} g () => ({kind} y) {body}")
    values = SymbolicValues()
    infer_graph(model.graph, model.opset_imports, values)
    array = values.arrays[model.graph.outputs[0]]
    assert array.dtype == kind and array == expected
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    assert session.run(None, {})[0] == expected


def test_the_smallest_integer_by_minus_1_ends_nothing() -> None:
    """The runtime itself is ended by the processor for it."""
    model = inferred(
        f"{HEAD} g (float[n] x) => (float[] y) <int64[1] a = {{-9223372036854775808}}, "
        "int64[1] b = {-1}> { c = Div(a, b) y = Expand(x, c) }"
    )
    assert shape(model, "c") == (1,)


def test_a_size_beyond_64_bits_is_not_known() -> None:
    model = inferred(
        f"{HEAD} g (float[1099511627776, 1099511627776] x) => (float[] y) "
        "<int64[1] all = {-1}> { f = Reshape(x, all) y = Relu(f) }"
    )
    assert shape(model, "y") == (None,)
