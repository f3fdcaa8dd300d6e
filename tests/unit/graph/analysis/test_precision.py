"""In which precision nodes of built files compute."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.unit import surveys

from ortune.graph.analysis.precision import find_precision, map_precisions


def read(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def test_pairs_make_integers_and_weights_alone_do_not() -> None:
    assert map_precisions(read(surveys.BUILT)) == {
        "fragile": "float32",
        "fragile_relu": "float32",
        "plain": "int8",
        "alike": "int8 weights",
    }


@pytest.mark.parametrize(
    ("op", "attributes", "said"),
    [
        ("MatMulNBits", "<K=4, N=4, bits=4, block_size=16>", "int4 weights"),
        ("Gelu", "", "float32"),
    ],
)
def test_operators_of_the_runtime(op: str, attributes: str, said: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[N,4] x) => (float[N,4] y) {{ [n] y = com.microsoft.{op} {attributes} (x) }}"""
    assert map_precisions(read(text)) == {"n": said}


def test_halves() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
g (float16[N,4] x) => (float16[N,4] y) { [n] y = Relu(x) }"""
    assert map_precisions(read(text)) == {"n": "float16"}


def test_what_stands_for_a_node_is_found_by_its_name() -> None:
    built = {"a_MatMulInteger": "int8", "a_Mul": "float32", "b": "float16", "c_x": "float32"}
    assert find_precision(built, "a") == "int8"
    assert find_precision(built, "b") == "float16"
    assert find_precision(built, "c") is None
    assert find_precision(built, "") is None
