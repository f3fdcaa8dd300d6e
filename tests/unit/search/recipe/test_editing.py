"""What a step that was asked for says about itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from ortune_toys.quantizers.broken import Broken

from ortune.core.errors import BadModel, OutOfTime, Refused
from ortune.core.observer import Ranges
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


def test_a_quantizer_that_cannot_have_its_opset_says_what_stands_in_the_way(
    tmp_path: Path,
) -> None:
    model = tmp_path / "m.onnx"
    text = """<ir_version: 3, opset_import: ["": 8]>
        g (float[1, 2] s, float[1, 3, 2] x, float[2, 2] w) => (float[1, 2] y, float[1, 3, 2] z)
        <float[2, 2] w = {1, 2, 3, 4}> {
        first, z = Scan<num_scan_inputs = 1, body = b (float[2] i, float[2] j) =>
          (float[2] o, float[2] p) { o = Add(i, j) p = Neg(j) }>(, s, x)
        y = MatMul(first, w) }"""
    onnx.save(parser.parse_model(text), model)
    with pytest.raises(Refused, match=r"needs opset 11, the model has 8.*Scan") as caught:
        build(model, Recipe("one", (read_step("int8-dynamic"),)), tmp_path / "o.onnx")
    assert caught.value.fix == "export the model with opset 11 or newer"


def rename(graph: ir.Graph) -> None:
    graph.outputs[0].name = "other"


def retype(graph: ir.Graph) -> None:
    graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)


def reshape(graph: ir.Graph) -> None:
    graph.outputs[0].shape = ir.Shape([2, 5])


def add_output(graph: ir.Graph) -> None:
    graph.outputs.append(graph.inputs[0])


def cut_off(graph: ir.Graph) -> None:
    graph.remove(graph.outputs[0].producer())


@pytest.mark.parametrize("spoil", [rename, retype, reshape, add_output, cut_off])
def test_what_a_quantizer_made_is_checked(
    spoil: Callable[[ir.Graph], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(self: Broken, model: ir.Model, ranges: Ranges) -> int:
        spoil(model.graph)
        return 1

    monkeypatch.setattr(Broken, "apply", apply)
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT.format(opset=20)), model)
    with pytest.raises(BadModel, match="broken"):
        build(model, Recipe("one", (Broken(),)), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
