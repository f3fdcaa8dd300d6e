"""What a step that was asked for says about itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from ortune.core.reading import step
from ortune.core.step import Recipe
from ortune.recipe.build import build

TEXT = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[2, 4] x) => (float[2, 4] y) {{ y = Softmax(x) }}"""


@pytest.mark.parametrize(
    ("opset", "said"), [(20, "it needs opset 23, the model has 20"), (23, "")]
)
def test_a_step_for_newer_opsets_says_so(opset: int, said: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT.format(opset=opset)), model)
    built = build(model, Recipe("one", (step("fuse-attention"),)), tmp_path / "out.onnx")
    assert [edit.note for edit in built.edits] == [said]
