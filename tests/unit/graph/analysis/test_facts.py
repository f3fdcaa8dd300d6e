"""Facts: counts, bytes and floating-point operations, checked by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of

from ortune.graph.analysis.facts import find_size_inputs, read_facts, table_bytes, table_rows

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def flops(body: str, inputs: str, head: str = HEAD) -> int | None:
    return read_facts(model_of(f"{head} g ({inputs}) => (float[] y) {{ {body} }}")).flops


@pytest.mark.parametrize(
    ("body", "inputs", "wanted"),
    [
        # multiply-adds count twice: out elements x kernel x input channels of the group
        ("y = Conv(x, w)", "float[1,4,6,6] x, float[8,4,3,3] w", 2 * 8 * 16 * 4 * 9),
        ("y = Conv<group = 4>(x, w)", "float[1,4,6,6] x, float[4,1,3,3] w", 2 * 4 * 16 * 9),
        (
            "y = ConvTranspose<strides = [2,2]>(x, w)",
            "float[1,4,3,3] x, float[4,5,2,2] w",
            2 * 4 * 9 * 5 * 4,
        ),
        ("y = MatMul(x, w)", "float[2,3,4] x, float[4,5] w", 2 * 2 * 3 * 5 * 4),
        ("y = MatMul(x, w)", "float[7,2,3,4] x, float[4] w", 2 * 7 * 2 * 3 * 4),
        ("y = Gemm(x, w)", "float[3,4] x, float[4,5] w", 2 * 3 * 5 * 4),
        ("y = Gemm<transA = 1, transB = 1>(x, w)", "float[4,3] x, float[5,4] w", 2 * 3 * 5 * 4),
        (
            'y = Einsum<equation = "bij,bjk->bik">(x, w)',
            "float[2,3,4] x, float[2,4,5] w",
            2 * 2 * 3 * 4 * 5,
        ),
        (
            "y, h, c = LSTM<hidden_size = 6>(x, w, r)",
            "float[5,2,3] x, float[1,24,3] w, float[1,24,6] r",
            2 * 5 * 2 * 24 * (3 + 6),
        ),
        (
            'y, h = GRU<hidden_size = 6, direction = "bidirectional">(x, w, r)',
            "float[5,2,3] x, float[2,18,3] w, float[2,18,6] r",
            2 * 5 * 2 * 2 * 18 * (3 + 6),
        ),
        ("y = Add(x, w)", "float[2,3] x, float[3] w", 6),
        ("y = Softmax(x)", "float[2,3] x", 6),
        ("t = Transpose(x) y = Reshape(t, s)", "float[2,3] x, int64[1] s", 0),
        # dynamic dimensions count as 1
        ("y = MatMul(x, w)", "float[n,m,4] x, float[4,5] w", 2 * 5 * 4),
    ],
)
def test_flops(body: str, inputs: str, wanted: int) -> None:
    assert flops(body, inputs) == wanted


def test_flops_of_attention() -> None:
    head = '<ir_version: 10, opset_import: ["": 23]>'
    inputs = "float[2,3,5,8] q, float[2,3,7,8] k, float[2,3,7,8] v"
    assert flops("y = Attention(q, k, v)", inputs, head) == 4 * 2 * 3 * 5 * 7 * 8


def test_flops_of_control_flow() -> None:
    text = f"""{HEAD} g (float[2,4] x, bool c) => (float[] y, float[] z)
        <int64 trips = {{3}}, bool yes = {{1}}> {{
        y = If(c) <
          then_branch = t () => (float[2,2] p) {{ p = MatMul(x, w) }},
          else_branch = e () => (float[2,4] q) {{ q = Relu(x) }}>
        z = Loop(trips, yes, x) <body = b (int64 i, bool ci, float[2,4] a) =>
          (bool co, float[2,4] d) {{ co = Identity(ci) d = Neg(a) }}> }}"""
    model = model_of(
        text.replace("<int64 trips", "<float[4,2] w = {1,2,3,4,5,6,7,8}, int64 trips")
    )
    found = read_facts(model)
    assert found.flops == 2 * 2 * 2 * 4 + 3 * 8
    assert found.subgraphs == 3 and found.nodes == 6


def test_unknown_shapes_of_what_multiplies_make_flops_unknown() -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "own": 1]>'
    assert flops("t = own.odd(x) y = MatMul(t, x)", "float[2,2] x", head) is None


def test_functions_count_where_they_are_called() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[2,4] x) => (float[2,4] y) { a = own.twice(x) y = own.twice(a) }
        <opset_import: ["": 17], domain: "own"> twice (a) => (b) { b = Add(a, a) }"""
    model = model_of(text)
    found = read_facts(model)
    assert found.flops == 16 and found.functions == 1
    assert found.ops == {"own::twice": 2}
    assert len(model.functions) == 1, "the model itself is left as it is"


def test_weights_are_counted_where_they_are_stored() -> None:
    text = f"""{HEAD} g (float[n, 4] x, float[4] d) => (float[] y)
        <float[4] w = {{1, 2, 3, 4}}, float[4] d = {{1, 2, 3, 4}}> {{
        c = Constant<value = int64[2] {{0, 4}}>() r = Reshape(x, c) a = Add(r, w)
        b = Add(a, d) y = Mul(b, b) }}"""
    model = model_of(text)
    packed = ir.tensor(np.zeros(5, ml_dtypes.int4), name="p")
    model.graph.register_initializer(ir.val("p", const_value=packed))
    found = read_facts(model)
    assert found.parameters == 4 + 4 + 2 + 5
    assert found.precisions == {"float32": 32, "int64": 16, "int4": 3}
    assert found.weight_bytes == 51
    assert [(one.name, one.dtype, one.shape) for one in found.inputs] == [
        ("x", "float32", ("n", 4))
    ]
    assert found.dynamic == ("n",) and found.opset == 17 and found.ir_version == 8


def test_sequences_and_strings_have_types() -> None:
    text = f"""{HEAD} g (string[n] s, float[2] x) => (seq(float[2]) y, string[n] t) {{
        y = SequenceConstruct(x, x) t = Identity(s) }}"""
    found = read_facts(model_of(text))
    assert [one.dtype for one in found.inputs] == ["str", "float32"]
    assert [one.dtype for one in found.outputs] == ["seq(float32)", "str"]
    assert found.outputs[0].shape is None or found.outputs[0].shape == (2,)


def test_weights_are_not_read() -> None:
    class Unread(ir.LazyTensor):
        def numpy(self) -> np.ndarray:
            raise AssertionError("read")

    model = model_of(
        f"{HEAD} g (float[n, 8] x) => (float[] y) <float[1] w = {{1}}> {{ y = MatMul(x, w) }}"
    )
    held = model.graph.initializers["w"]
    held.const_value = Unread(
        lambda: ir.tensor([0.0]), dtype=ir.DataType.FLOAT, shape=ir.Shape([8, 1000]), name="w"
    )
    held.shape = ir.Shape([8, 1000])
    assert read_facts(model).flops == 2 * 8 * 1000


# How many rows there are for the integers of an input.


HEAD_LOOKUPS = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
TABLES = "float[40,4] t = {" + "1," * 159 + "1}, float[4,7] u = {" + "1," * 27 + "1}"


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f"{HEAD_LOOKUPS} {text}"))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Gather(t, ids)", {"ids": 40}),
        ("y = Gather<axis = -1>(u, ids)", {"ids": 7}),
        ("wide = Cast<to = 7>(ids) flat = Flatten(wide) y = Gather(t, flat)", {"ids": 40}),
        ("half = Cast<to = 10>(t) y = Gather(half, ids)", {"ids": 40}),
        ("p = Gather(t, ids) q = Gather<axis = 1>(u, ids) y = Concat<axis = 0>(p, q)", {"ids": 7}),
        ("one = Constant<value_int = 1>() more = Add(ids, one) y = Gather(t, more)", {"ids": 39}),
        ("y = Cast<to = 1>(ids)", {}),
        ("y = com.microsoft.EmbedLayerNormalization(ids, , t, u, , u, u)", {"ids": 40}),
    ],
)
def test_rows(body: str, wanted: dict[str, int]) -> None:
    made = model(f"g (int64[2,3] ids) => (float y) <{TABLES}> {{ {body} }}")
    assert table_rows(made) == wanted


def test_rows_of_a_dimension_with_a_name_as_edges_point_to_the_nodes_of_a_graph() -> None:
    made = model(
        f"""g (float[nodes,4] x, int64[2,edges] ends, int64[k] some) => (float[edges,4] y, float z)
        <{TABLES}, int64 first = {{0}}> {{
          sources = Gather(ends, first)
          y = Gather(x, sources)
          h = Relu(x)
          p = Gather(h, some)
          z = ReduceSum(p)
        }}"""
    )
    assert table_rows(made) == {"ends": "nodes"}
    facts = read_facts(made)  # with inferred shapes: of what is computed too
    assert [one.rows for one in facts.inputs] == [None, "nodes", "nodes"]
    assert not facts.embeds and not facts.names_tokens


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Tile(t, ids)", {"ids"}),
        ("wide = Cast<to = 7>(ids) y = ConstantOfShape(wide)", {"ids"}),
        ("y = Reshape(ids, ids)", {"ids"}),
        ("y = Gather(t, ids)", set()),
        ("shape = Shape(ids) y = ConstantOfShape(shape)", set()),
    ],
)
def test_inputs_that_say_sizes(body: str, found: set[str]) -> None:
    made = model(f"g (int64[2] ids) => (float y) <{TABLES}> {{ {body} }}")
    assert find_size_inputs(made) == found
    assert [one.sizes for one in read_facts(made).inputs] == [bool(found)]


def test_a_table_of_a_known_size_may_be_computed_and_bodies_look_up_too() -> None:
    made = model(
        f"""g (float[9,4] x, int64[2] a, int32[2] b, bool c) => (float[n,m] y) <{TABLES}> {{
          h = Relu(x)
          p = Gather(x, a)
          y = If(c) <then_branch = t1 () => (float[n,m] q) {{ q = Gather(t, b) }},
                     else_branch = t2 () => (float[n,m] r) {{ r = Gather(u, b) }}>
        }}"""
    )
    assert table_rows(made) == {"a": 9, "b": 4}
    assert [one.rows for one in read_facts(made).inputs] == [None, 9, 4, None]


@pytest.mark.parametrize(
    ("body", "bytes_"),
    [
        ("y = Gather(t, ids)", 640),
        ("p = Gather(t, ids) q = Gather<axis = 1>(u, ids) y = Concat<axis = 0>(p, q)", 752),
        ("p = Gather(t, ids) tied = Transpose(t) y = MatMul(p, tied)", 0),
        ("one = Constant<value_ints = [1, 2]>() y = Gather(one, ids)", 16),
        ("y = Gather(ids, ids)", 0),
        ("y = Neg(t)", 0),
    ],
)
def test_what_is_looked_up_alone_is_no_weight_that_a_run_reads(body: str, bytes_: int) -> None:
    made = model(f"g (int64[2,3] ids) => (float y) <{TABLES}> {{ {body} }}")
    assert table_bytes(made) == bytes_
    assert read_facts(made).table_bytes == bytes_
