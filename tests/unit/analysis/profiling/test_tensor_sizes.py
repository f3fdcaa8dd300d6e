"""Sizes from a sample, and kernels whose runtime told none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.unit.rewriting import model_of

from ortune.analysis.profiling.profile import fill_operands, infer_operands
from ortune.core.session import Executed, Operand
from ortune.data import stream
from ortune.graph.analysis.dataflow import Origin

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n,4] x) => (float[n,2] y) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
  a = MatMul (x, w)
  b = Relu (a)
  y = Neg (b)
}"""
X, W = Operand("float32", (6, 4), 96), Operand("float32", (4, 2), 32, constant=True)
Y = Operand("float32", (6, 2), 48)


def known(folder: Path, batch: int) -> tuple[Origin, dict[str, Operand]]:
    model = model_of(TEXT)
    for node, name in zip(model.graph, ("mul", "relu", "neg"), strict=True):
        node.name = name
    path = folder / "s"
    stream.write_stream(path, [{"x": np.zeros((3, 4), np.float32)}])
    found = infer_operands(model, path, batch)
    assert str(model.graph.inputs[0].shape) == "[n,4]", "the model is left alone"
    return Origin(model), found


def test_sizes_follow_from_the_first_sample_and_the_batch(tmp_path: Path) -> None:
    _, found = known(tmp_path, 2)
    assert (found["x"], found["w"], found["y"]) == (X, W, Y)


def test_a_fused_kernel_reads_and_writes_what_crosses_its_border(tmp_path: Path) -> None:
    origin, found = known(tmp_path, 2)
    node = fill_operands(Executed("k", "FullyConnected"), ("mul", "relu"), origin, found)
    assert (node.inputs, node.outputs) == ((X, W), (Y,))


def test_what_the_runtime_told_is_kept_and_nothing_is_made_up(tmp_path: Path) -> None:
    origin, found = known(tmp_path, 0)
    told = Executed("k", "MatMul", inputs=(W,), outputs=(Y,))
    assert fill_operands(told, ("mul",), origin, found) == told
    bare = Executed("k", "MatMul")
    assert fill_operands(bare, (), origin, found) == bare
    del found["w"]
    assert fill_operands(bare, ("mul",), origin, found) == bare


def test_text_has_no_size(tmp_path: Path) -> None:
    model = model_of("""<ir_version: 9, opset_import: ["" : 20]>
    g (string[2] x) => (string[2] y) { y = StringConcat (x, x) }""")
    stream.write_stream(tmp_path / "s", [{"x": np.array(["a", "b"])}])
    found = infer_operands(model, tmp_path / "s", 0)
    assert found["x"] == Operand("str", (2,), 0)
