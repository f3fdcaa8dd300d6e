"""Verbs name what makes a model disagree with itself, and judge by what the file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.unit import wrong_models

from ortune.analysis.conversion.apply import apply
from ortune.analysis.conversion.convert import convert
from ortune.analysis.verification.verify import verify
from ortune.backends.cpu import Cpu
from ortune.core.event import Event, Note
from ortune.core.trial import Verdict
from ortune.search.optimize import optimize


def saved(text: str, folder: Path) -> Path:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (wrong_models.POOLED, "basic"),
        (wrong_models.DOUBLE, "all"),
        (wrong_models.NORMALIZED, "extended"),
        (wrong_models.CLIPPED, "extended"),
    ],
)
def test_convert_writes_what_the_source_says(text: str, level: str, tmp_path: Path) -> None:
    source, out = saved(text, tmp_path), tmp_path / "out.onnx"
    converted = convert(source, out, opt_level=level)
    assert any("is left out here" in note for note in converted.notes)
    assert min(float(str(score["value"])) for score in converted.compared) > 0.99
    dims = onnx.load(source).graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value or 2 for dim in dims]
    dtype = np.float64 if text == wrong_models.DOUBLE else np.float32
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    plain = Cpu(level="disabled")
    with plain.open(source) as before, plain.open(out) as after:
        expected, actual = before.run({"x": x})["y"], after.run({"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_verify_judges_by_the_file_and_not_by_the_optimizer(tmp_path: Path) -> None:
    source = saved(wrong_models.POOLED, tmp_path)
    same = verify(source, source)
    assert same.good and "Pad_Fusion" in same.doubt
    folded = tmp_path / "folded.onnx"
    Cpu(level="basic").save(source, folded)
    assert "Pad" not in {node.op_type for node in onnx.load(folded).graph.node}
    other = verify(source, folded)
    assert other.verdict is Verdict.FAILS and not other.good


def test_random_models_are_said_to_be_so(tmp_path: Path) -> None:
    source, notes = saved(wrong_models.NOISY, tmp_path), []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    judged = verify(source, source)
    assert "does not agree with itself" in judged.doubt and not judged.good
    assert verify(source, source, ignore_output=("y",)).good
    converted = convert(source, tmp_path / "out.onnx")
    assert any("does not agree with itself" in note for note in converted.notes)
    assert all(float(str(score["value"])) > 0.99 for score in converted.compared)
    apply(source, ["simplify"], out=tmp_path / "clean.onnx", sink=listen)
    assert any("does not agree with itself" in text for text in notes)
    alone = saved(wrong_models.SEEDED, tmp_path)
    assert convert(alone, tmp_path / "out.onnx", force=True).compared == []


def test_a_search_leaves_the_wrong_optimizer_out_of_every_plan(tmp_path: Path) -> None:
    source = saved(wrong_models.POOLED, tmp_path)
    study = optimize(source, out=tmp_path / "run", on="cpu(threads=1)", time=4)
    backends = [trial.plan.backend for trial in study.trials]
    assert backends and all("Pad_Fusion" in backend.disable for backend in backends)  # type: ignore[attr-defined]
    assert "Pad_Fusion" in study.header.doubt
