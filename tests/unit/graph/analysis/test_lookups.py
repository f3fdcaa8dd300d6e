"""How many rows there are for the integers of an input."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortune.graph.analysis.facts import read_facts, table_bytes, table_rows

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
TABLES = "float[40,4] t = {" + "1," * 159 + "1}, float[4,7] u = {" + "1," * 27 + "1}"


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f"{HEAD} {text}"))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Gather(t, ids)", {"ids": 40}),
        ("y = Gather<axis = -1>(u, ids)", {"ids": 7}),
        ("wide = Cast<to = 7>(ids) flat = Flatten(wide) y = Gather(t, flat)", {"ids": 40}),
        ("half = Cast<to = 10>(t) y = Gather(half, ids)", {"ids": 40}),
        ("p = Gather(t, ids) q = Gather<axis = 1>(u, ids) y = Concat<axis = 0>(p, q)", {"ids": 7}),
        ("one = Constant<value_int = 1>() more = Add(ids, one) y = Gather(t, more)", {}),
        ("y = Cast<to = 1>(ids)", {}),
        ("y = com.microsoft.EmbedLayerNormalization(ids, , t, u, , u, u)", {"ids": 40}),
    ],
)
def test_rows(body: str, wanted: dict[str, int]) -> None:
    made = model(f"g (int64[2,3] ids) => (float y) <{TABLES}> {{ {body} }}")
    assert table_rows(made) == wanted


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
