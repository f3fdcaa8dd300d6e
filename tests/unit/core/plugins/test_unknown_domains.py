"""Operators of domains that nobody knows pass through every step as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from tests.unit.rewriting import loaded

from ortune.core.errors import Refused
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer, Transform
from ortune.graph.io.wellformed import check_model, describe_signature

MODEL = """<ir_version: 8, opset_import: ["": 17, "own.ops": 3]>
g (float[n,32] x) => (float[n,32] y, float[n,32] own) {
  h = MatMul(x, w)
  b = Add(h, bias)
  i = Identity(b)
  c, own = own.ops.Odd <power: int = 3, words: strings = ["a"]> (i, , bias)
  d = Add(c, zero)
  e = MatMul(d, v)
  s = Sigmoid(e)
  y = Mul(e, s)
}"""
EASY = ("fp16", "bf16", "int8-dynamic", "int8-weights", "int4-weights")


def model() -> ir.Model:
    proto = parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((32, 32)),
        "v": rng.standard_normal((32, 32)),
        "bias": rng.standard_normal(32),
        "zero": np.zeros(32),
    }
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return loaded(proto)


def odd(found: ir.Model) -> ir.Node:
    (node,) = [one for one in found.graph if one.domain == "own.ops"]
    return node


def unharmed(found: ir.Model) -> None:
    node = odd(found)
    assert found.opset_imports["own.ops"] == 3
    assert node.op_type == "Odd" and len(node.outputs) == 2
    assert node.attributes["power"].as_int() == 3
    assert list(node.attributes["words"].as_strings()) == ["a"]
    assert len(node.inputs) == 3 and node.inputs[1] is None
    assert node.outputs[1].name == "own" or not node.outputs[1].is_graph_output()


EXACT = [
    name
    for name in catalog.list_plugins(Transform)
    if catalog.load_plugin(Transform, name)().keeps_io
]
"""Without those that need settings."""


@pytest.mark.parametrize("name", EXACT)
def test_transforms_leave_them_alone(name: str) -> None:
    step, found = catalog.load_plugin(Transform, name)(), model()
    before = describe_signature(found)
    try:
        step.apply(found)
    except Refused:
        found = model()
    check_model(found, before, name)
    unharmed(found)


@pytest.mark.parametrize("name", EASY)
def test_quantizers_leave_them_in_float32(name: str) -> None:
    step, found = catalog.load_plugin(Quantizer, name)(), model()
    before = describe_signature(found)
    assert step.apply(found, {})
    check_model(found, before, name)
    unharmed(found)
    held = odd(found).inputs[2]
    assert held is not None and held.const_value is not None
    assert held.const_value.dtype == ir.DataType.FLOAT
    maker = odd(found).inputs[0]
    assert maker is not None and maker.dtype in (None, ir.DataType.FLOAT)
