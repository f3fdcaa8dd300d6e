"""Local functions, kept or inlined on request."""

import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from tests.sweeps import transforms
from tests.unit.rewriting import loaded, model_of, normal, ops, transformed

from ortune.core.errors import Refused
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Transform
from ortune.graph.ir.edit import take_notes

MODEL = """<ir_version: 10, opset_import: ["": 17, "own": 1]>
g (float[n,8] x) => (float[n,8] y) <float[8,8] w, float[8] b> {
  h = MatMul(x, w)
  a = own.swish(h)
  c = own.shifted <by: float = 2.0> (a)
  i = Identity(c)
  y = Add(i, b)
}
<domain: "own", opset_import: ["": 17]>
swish (x) => (y) {
  s = Sigmoid(x)
  i = Identity(s)
  y = Mul(x, i)
}
<domain: "own", opset_import: ["": 17, "own": 1]>
shifted <by> (x) => (y) {
  k = Constant <value_float: float = @by> ()
  z = own.swish(x)
  t = Add(z, k)
  y = Relu(t)
}
"""
FEEDS = [{"x": normal(n, 8, seed=n)} for n in (0, 1, 3)]
INLINING = {"inline-functions", "raise-opset", "lower-opset"}
"""Steps that must see every node."""


def model() -> ir.Model:
    proto = parser.parse_model(MODEL.replace(" <float[8,8] w, float[8] b>", ""))
    for name, array in (("w", normal(8, 8)), ("b", normal(8))):
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return loaded(proto)


def functions(found: ir.Model) -> list[str]:
    return sorted(function.name for function in found.functions.values())


def test_simplify_inlines_by_default_and_keeps_on_request() -> None:
    after, _ = transformed(model(), parse_plugin(Transform, "simplify"), FEEDS)
    assert not functions(after) and ops(after)["Sigmoid"] == 2 and "Identity" not in ops(after)
    kept, count = transformed(model(), parse_plugin(Transform, "simplify(functions=keep)"), FEEDS)
    assert functions(kept) == ["shifted", "swish"] and count
    assert ops(kept)["swish"] == 1 and "Identity" not in {n.op_type for n in kept.graph}


def test_only_the_named_are_inlined() -> None:
    for name in ("shifted", "own::shifted"):
        step = parse_plugin(Transform, f'inline-functions(only=["{name}"])')
        after, count = transformed(model(), step, FEEDS, may_grow=True)
        assert count == 1 and functions(after) == ["swish"]
        assert ops(after)["swish"] == 2
    everything, count = transformed(model(), parse_plugin(Transform, "inline-functions"), FEEDS)
    assert count == 2 and not functions(everything)


def test_a_name_that_is_not_there_is_refused() -> None:
    for name in ("nothing", "other::swish"):
        with pytest.raises(Refused, match="there is no local function") as error:
            parse_plugin(Transform, f'inline-functions(only=["{name}"])').apply(model())
        assert "shifted, swish" in error.value.fix


def test_what_cannot_be_inlined_is_said() -> None:
    other = model_of(
        """<ir_version: 10, opset_import: ["": 17, "own": 1]>
        g (float[n] x) => (float[n] y) { y = own.old(x) }
        <domain: "own", opset_import: ["": 13]> old (x) => (y) { y = Relu(x) }"""
    )
    assert parse_plugin(Transform, "inline-functions").apply(other) == 0
    assert "old stays: it is of another opset" in take_notes(other)


KEEP_IO = [step.name() for step in transforms()]


@pytest.mark.parametrize("name", KEEP_IO)
def test_kept_functions_survive_every_transform(name: str) -> None:
    step = catalog.load_plugin(Transform, name)()
    if name == "simplify":
        step = parse_plugin(Transform, "simplify(functions=keep)")
    after, _ = transformed(model(), step, FEEDS, may_grow=True)
    assert name in INLINING or functions(after) == ["shifted", "swish"]
