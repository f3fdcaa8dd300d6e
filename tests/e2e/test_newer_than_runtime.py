"""A model newer than the runtime becomes one that loads and answers the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import ortune
from ortune.analysis.conversion.apply import apply
from ortune.analysis.inspection.inspect import inspect
from ortune.backends.cpu import Cpu
from ortune.core.errors import BadModel
from ortune.core.facts import NEWEST_OPSET

BODIES = {
    "products": "(float[b, 4] x) => (float[b, 4] y) { m = MatMul(x, w) y = Relu(m) }",
    "a body": """(float[b, 4] x, bool c) => (float[b, 4] y) { m = MatMul(x, w)
        y = If(c) <then_branch = t () => (float[b, 4] u) { u = Softmax(m) },
                   else_branch = f () => (float[b, 4] v) { v = Gelu(m) }> }""",
    "a cast": "(float[b, 4] x) => (float[b, 4] y) { h = Cast<to = 10>(x) y = Cast<to = 1>(h) }",
}


@pytest.mark.skipif(onnx.defs.onnx_opset_version() <= NEWEST_OPSET, reason="onnx is no newer")
@pytest.mark.parametrize(
    ("body", "ir_version"), [("products", 14), ("a body", 10), ("a cast", 14)]
)
def test_what_inspect_advises_loads_and_agrees(body: str, ir_version: int, tmp_path: Path) -> None:
    opset = onnx.defs.onnx_opset_version()
    weights = "<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {"
    text = BODIES[body].replace("{", weights, 1)
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    proto.ir_version = ir_version
    source, out = tmp_path / "m.onnx", tmp_path / "older.onnx"
    onnx.save(proto, source)
    plain = Cpu(level="disabled")
    step = f"lower-opset(to={NEWEST_OPSET})"
    with pytest.raises(BadModel) as refused, plain.open(source):
        pass
    assert step in refused.value.fix
    assert any(step in finding.action for finding in inspect(source).lint)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    feeds |= {"c": np.array(True)} if "bool c" in text else {}
    applied = apply(source, [step], out=out, data=lambda: [feeds] * 3)
    assert applied.edits[0].kept and applied.edits[0].count
    with plain.open(out) as session:
        actual = session.run(feeds)["y"]
    assert helper.make_opsetid("", NEWEST_OPSET) in onnx.load(out).opset_import
    np.testing.assert_allclose(
        actual, ReferenceEvaluator(str(source)).run(None, feeds)[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.skipif(onnx.defs.onnx_opset_version() <= NEWEST_OPSET, reason="onnx is no newer")
@pytest.mark.parametrize(
    ("verb", "ir_version"), [("optimize", 14), ("verify", 13), ("tune", 14), ("convert", 13)]
)
def test_a_verb_that_cannot_run_it_says_the_step(
    verb: str, ir_version: int, tmp_path: Path
) -> None:
    text = f'<ir_version: 10, opset_import: ["": {onnx.defs.onnx_opset_version()}]>'
    proto = parser.parse_model(f"{text} g (float[b, 4] x) => (float[b, 4] y) {{ y = Relu(x) }}")
    proto.ir_version = ir_version
    source = tmp_path / "m.onnx"
    onnx.save(proto, source)
    with pytest.raises(ortune.OrtuneError) as refused:
        match verb:
            case "optimize":
                ortune.optimize(source, time="5s", out=tmp_path / "run")
            case "verify":
                ortune.verify(source, source)
            case "tune":
                ortune.tune(source)
            case _:
                ortune.convert(source, tmp_path / "out.onnx")
    assert f"lower-opset(to={NEWEST_OPSET})" in refused.value.fix
