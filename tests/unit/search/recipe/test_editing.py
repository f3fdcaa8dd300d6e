"""What a step that was asked for says about itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from ortune.core.errors import BadModel, OutOfTime
from ortune.core.progress import time_limit
from ortune.core.reading import read_step
from ortune.core.step import Recipe
from ortune.search.recipe.build import build

TEXT = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[2, 4] x) => (float[2, 4] y) {{ y = Softmax(x) }}"""


@pytest.mark.parametrize(
    ("opset", "said"), [(20, "it needs opset 23, the model has 20"), (23, "")]
)
def test_a_step_for_newer_opsets_says_so(opset: int, said: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT.format(opset=opset)), model)
    built = build(model, Recipe("one", (read_step("fuse-attention"),)), tmp_path / "out.onnx")
    assert [edit.note for edit in built.edits] == [said]


@pytest.mark.parametrize("steps", ["int8-weights(min_size=1)", "simplify"])
def test_a_build_whose_time_is_up_ends_and_leaves_no_step_out(steps: str, tmp_path: Path) -> None:
    """An exact step that fails is rolled back, and the model is built without it."""
    model = tmp_path / "m.onnx"
    text = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float[1] one = {1}>
    { two = Add(one, one) z = MatMul(x, w) y = Mul(z, two) }"""
    onnx.save(parser.parse_model(text), model)
    with pytest.raises(OutOfTime), time_limit.at_most(0):
        build(model, Recipe("one", (read_step(steps),)), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    build(model, Recipe("one", (read_step(steps),)), tmp_path / "out.onnx")


MIXED_UP = """
from collections.abc import Iterable
from dataclasses import dataclass
import onnx_ir as ir
from ortune.core.step import Quantizer

@dataclass(frozen=True)
class Wrong(Quantizer):
    \"\"\"Does what no quantizer may.\"\"\"

    def apply(self, model, ranges) -> int:
        graph = model.graph
        output = graph.outputs[0]
        {body}
        return 1
"""


@pytest.mark.parametrize(
    "body",
    [
        'output.name = "other"',
        "output.type = ir.TensorType(ir.DataType.FLOAT16)",
        "output.shape = ir.Shape([2, 5])",
        "graph.outputs.append(graph.inputs[0])",
        "graph.remove(output.producer())",
    ],
)
def test_what_a_quantizer_made_is_checked(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(MIXED_UP.replace("{body}", body))
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT.format(opset=20)), model)
    with pytest.raises(BadModel, match=r"[Ww]rong"):
        build(model, Recipe("one", (read_step("wrong.py:Wrong"),)), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
