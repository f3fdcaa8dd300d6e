"""What an inspection shows at a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models import write_classifier
from tests.unit.studies import write_model

import ortune as ot


def test_the_repr_has_the_figures_of_the_models_size_and_work(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path)
    found = ot.inspect(model)
    shown = found.summary()
    assert shown["nodes"] == found.facts.nodes
    assert shown["FLOPs"] == found.facts.flops
    assert shown["bytes moved"] == found.moved
    assert shown["findings"] == len(found.lint)
    assert repr(found).startswith("Inspection\n  model ")


def test_what_was_skipped_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = write_classifier(tmp_path)
    assert ot.inspect(model).skipped == ""
    found = ot.inspect(model, weights=False)
    assert "its digest, findings about weights" in found.skipped
    assert "saturate" not in found.skipped and found.digest is None
    monkeypatch.setattr("ortune.analysis.inspection.inspect.READ_BELOW", 1)
    quantized = ot.convert(model, tmp_path / "q.onnx", precision="int8")
    assert quantized is not None
    assert "integer layers can saturate" in ot.inspect(tmp_path / "q.onnx").skipped
    assert ot.inspect(tmp_path / "q.onnx", weights=True).skipped == ""


def test_a_step_is_named_when_it_changes_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4] x) => (float[1, 4] y) {a = Identity(x) b = Identity(a) y = Relu(b)}"""
    (tried,) = ot.inspect(write_model(tmp_path / "m.onnx", text)).steps
    assert (tried.step, tried.nodes_before, tried.nodes_after) == ("simplify", 3, 1)
    plain = text.replace("a = Identity(x) b = Identity(a) y = Relu(b)", "y = Relu(x)")
    assert not ot.inspect(write_model(tmp_path / "plain.onnx", plain)).steps
