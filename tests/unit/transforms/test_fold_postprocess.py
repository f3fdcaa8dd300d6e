"""An output that gives what is done with it gives just that."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of, normal, run

from ortune.core.errors import OrtuneError
from ortune.core.step import Recipe
from ortune.data import synthetic
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.graph.io.wellformed import list_problems
from ortune.graph.ir import edit
from ortune.search.recipe.build import build
from ortune.transforms.fold_postprocess import FoldPostprocess


def model(shape: str = "n,3,5,4", kind: str = "float", opset: int = 17) -> ir.Model:
    return model_of(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[{shape}] x) => ({kind}[{shape}] y, {kind}[{shape}] z) {{
        y = Neg(x) z = Abs(y) }}"""
    )


CASES = [
    (FoldPostprocess("y"), "n,6", (2, 6)),
    (FoldPostprocess("y"), "n,3,5,4", (2, 3, 5, 4)),
    (FoldPostprocess("y"), "n,s,6", (2, 7, 6)),
    (FoldPostprocess("y", axis=0), "n,6", (2, 6)),
    (FoldPostprocess("y", give="top-k", k=3), "n,6", (2, 6)),
    (FoldPostprocess("y", give="top-k", k=1), "n,3,5,4", (2, 3, 5, 4)),
    (FoldPostprocess("y", give="softmax"), "n,6", (2, 6)),
    (FoldPostprocess("y", give="softmax"), "n,3,5,4", (2, 3, 5, 4)),
    (FoldPostprocess("y", give="uint8"), "n,3,5,4", (2, 3, 5, 4)),
    (FoldPostprocess("y", give="uint8", scale=127.5, offset=127.5), "3,5,4", (3, 5, 4)),
    (FoldPostprocess("y", give="uint8", layout="NHWC"), "n,5,4,3", (2, 5, 4, 3)),
    (FoldPostprocess("y", give="uint8", scale=1.0), "n,6", (2, 6)),
]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("step", "shape", "sizes"), CASES)
def test_each_gives_what_numpy_gives(
    step: FoldPostprocess, shape: str, sizes: tuple[int, ...], opset: int
) -> None:
    before = model(shape, opset=opset)
    bridge = step.bridge(before)
    after = before.clone()
    assert step.apply(after) > 0 and not list_problems(after)
    feeds = {"x": normal(*sizes)}
    told = bridge.joined([dict(zip(("y", "z"), run(before, feeds), strict=True))])
    found = dict(
        zip([one.name for one in edit.list_outputs(after)], run(after, feeds), strict=True)
    )
    assert list(found) == list(told)
    for (name, one), described in zip(told.items(), edit.list_outputs(after), strict=True):
        assert found[name].dtype == one.dtype == np.dtype(described.dtype)
        assert described.shape is not None and len(described.shape) == one.ndim
        np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=1e-7)


def test_bytes_are_rounded_and_clipped_with_channels_last() -> None:
    after = model("n,3,h,w")
    FoldPostprocess("y", give="uint8").apply(after)
    values = np.array([-2.0, -0.5 / 255, -1.0], np.float32).reshape(1, 3, 1, 1)
    assert run(after, {"x": values})[0].tolist() == [[[[255, 0, 255]]]]
    assert edit.list_outputs(after)[0].shape == ("n", "h", "w", 3)


def test_half_precision_becomes_bytes_and_labels() -> None:
    for step in (FoldPostprocess("y", give="uint8"), FoldPostprocess("y")):
        after = model("n,3", kind="float16")
        step.apply(after)
        assert len(run(after, {"x": normal(2, 3).astype(np.float16)})) == 2


WRONG = [
    (FoldPostprocess(), "2 outputs", "set output to one of: y, z"),
    (FoldPostprocess("q"), "no output 'q'", "set output to one of: y, z"),
    (FoldPostprocess("y", axis=4), "has no axis 4", "set axis to -4 to 3"),
    (FoldPostprocess("y", give="top-k", k=4), "4 largest of 3", "set k to less"),
    (FoldPostprocess("y", give="top-k", k=0), "0 largest of 3", "set k to 1 or more"),
]


@pytest.mark.parametrize(("step", "what", "fix"), WRONG)
def test_what_does_not_fit_is_refused(step: FoldPostprocess, what: str, fix: str) -> None:
    with pytest.raises(OrtuneError, match=what) as raised:
        step.apply(model())
    assert fix in raised.value.fix


def test_integers_are_refused() -> None:
    with pytest.raises(OrtuneError, match="is int64"):
        FoldPostprocess("y").apply(model(kind="int64"))


def test_two_in_a_build_are_compared_across(tmp_path: Path) -> None:
    source = file.save(model(), tmp_path / "m.onnx")
    inputs = read_facts(file.load(source)).inputs
    made = synthetic.generate_feeds(inputs, tmp_path, shapes={}, ranges={}, count=2)
    steps = (FoldPostprocess("y", give="uint8"), FoldPostprocess("z", give="top-k", k=2))
    built = build(source, Recipe("r", steps), tmp_path / "out.onnx", feeds=made)
    assert all(edit.note.startswith("200 dB") for edit in built.edits)
    names = [one.name for one in read_facts(file.load(built.path)).outputs]
    assert names == ["y", "z", "z_indices"]
