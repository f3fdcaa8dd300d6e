"""What a step that was asked for says about itself."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from ortune_toys.quantizers.broken import Broken

from ortune.core.errors import BadModel, OutOfTime, Refused
from ortune.core.event import Event, Note
from ortune.core.observer import Ranges
from ortune.core.progress import time_limit
from ortune.core.reading import read_step
from ortune.core.step import Recipe
from ortune.data import feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.quantizers.int8_weights import Int8Weights
from ortune.search.recipe.build import build
from ortune.transforms.fold_postprocess import FoldPostprocess
from ortune.transforms.fuse_gelu import FuseGelu
from ortune.transforms.simplify import Simplify

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


def write_samples(model: Path) -> feeds.Feeds:
    rng = np.random.default_rng(0)
    (model.parent / "data").mkdir()
    for at in range(3):
        x = rng.standard_normal((2, 4), np.float32)
        np.savez(model.parent / "data" / f"{at}.npz", x=x)
    inputs = read_facts(file.load(model)).inputs
    return feeds.load_feeds(model.parent / "data", inputs, model.parent / "feeds")


WEIGHTED = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] w = {1, 0, 0.3, 0, 0, 1, 0, 0.7, 0, 0.2, 1, 0, 0.9, 0, 0, 1}>
    { y = MatMul(x, w) }"""


def write_weighted(folder: Path, text: str = WEIGHTED) -> Path:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def halve(graph: ir.Graph) -> None:
    weight = graph.initializers["w"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() / 2, name="w")


def double_weights(graph: ir.Graph) -> None:
    weight = graph.initializers["w"]
    graph.register_initializer(ir.Value(name="v", const_value=weight.const_value))


@pytest.mark.parametrize("spoil", [rename, retype, reshape, add_output, cut_off, halve])
def test_an_exact_step_that_spoils_the_model_is_rolled_back_alone(
    spoil: Callable[[ir.Graph], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simplify, "apply", lambda self, model: [spoil(model.graph)] and 1)
    monkeypatch.setattr(FuseGelu, "apply", lambda self, model: 2)
    model, out = write_weighted(tmp_path), tmp_path / "out.onnx"
    numbers = write_samples(model) if spoil is halve else None
    built = build(model, Recipe("two", (Simplify(), FuseGelu())), out, feeds=numbers)
    assert [(edit.count, edit.kept) for edit in built.edits] == [(0, False), (2, True)]
    said = "rolled back" if spoil is halve else "broke the model"
    assert said in built.edits[0].note
    assert onnx.load(out).graph.output == onnx.load(model).graph.output
    weights = [onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
               for path in (model, out)]  # fmt: skip
    np.testing.assert_array_equal(*weights)


def test_a_step_that_makes_the_weights_larger_says_by_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simplify, "apply", lambda self, model: [double_weights(model.graph)] and 1)
    built = build(write_weighted(tmp_path), Recipe("one", (Simplify(),)), tmp_path / "out.onnx")
    assert built.edits[0].note == "weights grow by 100 %"


def test_a_step_that_dies_is_left_out_but_a_full_disk_is_no_verdict_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, recipe = write_weighted(tmp_path), Recipe("one", (Simplify(),))

    def fail(self: Simplify, model: ir.Model) -> int:
        raise reason

    monkeypatch.setattr(Simplify, "apply", fail)
    reason: Exception = ValueError("no such axis")
    (edit,) = build(model, recipe, tmp_path / "out.onnx").edits
    assert (edit.count, edit.kept, edit.note) == (0, False, "ValueError: no such axis")
    reason = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        build(model, recipe, tmp_path / "again.onnx")


def test_what_comes_behind_a_quantizer_is_compared_with_what_it_made(tmp_path: Path) -> None:
    model = write_weighted(tmp_path)
    steps = (Int8Weights(min_size=1), FoldPostprocess("y"), Simplify())
    built = build(model, Recipe("three", steps), tmp_path / "out.onnx", feeds=write_samples(model))
    notes = {edit.step.partition("(")[0]: edit.note for edit in built.edits}
    assert notes["fold-postprocess"].startswith(("200 dB", "1")), "not int8's own noise"
    assert all(edit.kept for edit in built.edits)


def test_a_model_that_draws_random_numbers_is_said_to_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simplify, "apply", lambda self, model: 1)
    monkeypatch.setattr(FuseGelu, "apply", lambda self, model: 1)
    text = WEIGHTED.replace(
        "y = MatMul(x, w)", "z = MatMul(x, w) r = RandomUniformLike(z) y = Add(z, r)"
    )
    model, seen = write_weighted(tmp_path, text), list[Event]()
    recipe = Recipe("two", (Simplify(), FuseGelu()))
    build(model, recipe, tmp_path / "out.onnx", feeds=write_samples(model), sink=seen.append)
    texts = [event.text for event in seen if isinstance(event, Note)]
    assert texts == ["outputs are not compared: the model does not agree with itself"]
