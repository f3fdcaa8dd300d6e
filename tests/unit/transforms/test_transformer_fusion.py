"""onnxruntime's transformer optimizer as a step: what it fused, and that it may fail."""

from __future__ import annotations

import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.core.errors import BadSettings
from ortune.core.plugins.spelling import parse
from ortune.core.step import Transform
from ortune.model.graph import edit
from ortune.transforms.transformer_fusion import TransformerFusion

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[b,s,8] x, float[b,s,8] w)'
NORM = """ => (float[b,s,8] y)
<float[8] scale = {1,2,3,4,5,6,7,8}, float[8] shift = {8,7,6,5,4,3,2,1}, float root = {1.4142135},
 float two = {2.0}, float tiny = {0.00001}, float one = {1.0}, float half = {0.5}> {
  sum = Add(x, w)
  mean = ReduceMean<axes = [-1], keepdims = 1>(sum)
  d = Sub(sum, mean)
  square = Pow(d, two)
  v = ReduceMean<axes = [-1], keepdims = 1>(square)
  e = Add(v, tiny)
  r = Sqrt(e)
  n = Div(d, r)
  m = Mul(n, scale)
  z = Add(m, shift)
  f = Div(z, root)
  g1 = Erf(f)
  h = Add(g1, one)
  i = Mul(z, h)
  j = Mul(i, half)
  y = Add(j, sum)
}"""


def test_what_it_fuses_is_told() -> None:
    feeds = [{"x": normal(1, 3, 8), "w": normal(1, 3, 8, seed=1)}]
    after, count = transformed(HEAD + NORM, TransformerFusion(), feeds, tolerance=1e-5)
    assert count == sum(ops(after)[name] for name in ("SkipLayerNormalization", "Gelu"))
    assert after.opset_imports["com.microsoft"] == 1
    told = edit.take_notes(after)
    assert "fused as bert:" in told and "Gelu 1" in told and "no attention" in told


def test_a_model_without_such_layers_is_left() -> None:
    model = model_of(f"{HEAD} => (float[b,s,8] y) {{ z = Add(x, w) y = Neg(z) }}")
    assert TransformerFusion(level=0).apply(model) == 0
    assert (ops(model), edit.take_notes(model)) == ({"Add": 1, "Neg": 1}, "fused as bert: nothing")


def test_a_failure_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    model = model_of(f"{HEAD} => (float[b,s,8] y) {{ y = Add(x, w) }}")
    assert TransformerFusion().apply(model) == 0
    assert "transformer optimizer failed: it ended with code 1" in edit.take_notes(model)


def test_kinds_are_the_optimizers() -> None:
    assert TransformerFusion(model_type="gpt2").model_type == "gpt2"
    with pytest.raises(BadSettings, match="model_type"):
        parse(Transform, "transformer-fusion(model_type=berd)")
