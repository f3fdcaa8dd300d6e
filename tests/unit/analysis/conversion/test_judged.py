"""A conversion that is far off, answers with NaN, or grows beyond measure is not just written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.quantizing import normal

from ortune.analysis.conversion.apply import apply
from ortune.analysis.conversion.convert import convert, judge_scores
from ortune.analysis.conversion.requests import Convert
from ortune.core.errors import Refused
from ortune.core.event import collect_notes, ignore_event
from ortune.core.facts import Facts, TensorSpec
from ortune.graph.io import file
from ortune.quantizers.common.float16 import narrow
from ortune.search.recipe import compare

OUTLIER = """g (float[b,32] x) => (float[b,32] y) { h = Mul(x, f) y = MatMul(h, w) }"""
"""The weights of the one large channel are 0."""

MASK = """g (float[b,t,32] x) => (float[b,t,32] y)
    <int64[2] shape = {1200, 1200}, int64[2] begins = {0, 0}> {
    n = Shape<start = 1, end = 2>(x) ends = Concat<axis = 0>(n, n)
    o = ConstantOfShape<value = float[1] {1}>(shape) m = Trilu<upper = 0>(o) k = Neg(m)
    s = Slice(k, begins, ends) h = MatMul(s, x) y = MatMul(h, w) }"""

TABLE = """g (int64[b,t] p) => (float[b,t,32] y)
    <float a = {0}, float z = {20000}, float one = {1}, int64[1] axis = {1}> {
    r = Range(a, z, one) u = Unsqueeze(r, axis) q = Mul(u, f) s = Sin(q) e = Gather(s, p)
    y = MatMul(e, w) }"""

BODIES = """g (float[b,32] x, bool c) => (float[b,n] y)
    <int64[2] shape = {32, 20000}, float[1,1] v = {0.5}> {
    y = If(c) <
      then_branch = t () => (float[b,n] p) { e = Expand(v, shape) p = MatMul(x, e) },
      else_branch = e () => (float[b,n] q) { h = Tile(v, shape) q = MatMul(x, h) }> }"""


def weight(text: str) -> np.ndarray:
    array = normal(32, 32)
    if text is OUTLIER:
        array[5] = 0
    return array


def write(folder: Path, text: str) -> Path:
    head = '<ir_version: 8, opset_import: ["": 17]>'
    proto = onnx.parser.parse_model(f"{head} {text}")
    if text is not BODIES:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight(text), "w"))
    if "f)" in text:
        factors = np.where(np.arange(32) == 5, 1e6, 1).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(factors, "f"))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def test_a_result_outside_any_budget_is_written_by_force_alone(tmp_path: Path) -> None:
    model, out = write(tmp_path, OUTLIER), tmp_path / "out.onnx"
    with pytest.raises(Refused, match="differs too much from the source") as caught:
        convert(model, out, precision="int8")
    assert "another --precision" in caught.value.fix and not out.exists()
    notes: list[str] = []
    convert(model, out, precision="int8", force=True, sink=collect_notes(notes, ignore_event))
    assert any("differs too much from the source" in note for note in notes)


@pytest.mark.parametrize(
    ("precision", "dtype", "db", "refused"),
    [
        ("fp16", "float32", 12.0, True),
        ("fp16", "float32", 37.0, False),
        ("fp16", "int64", 12.0, False),
        ("int8", "float32", 12.0, False),
        ("int4", "float32", -1.0, True),
        (None, "float32", float("nan"), True),
    ],
)
def test_what_a_precision_explains(precision: Any, dtype: str, db: float, refused: bool) -> None:
    request = Convert("m.onnx", "o.onnx", precision=precision)
    outputs = (TensorSpec("y", dtype, (1,)),)
    facts = Facts({"MatMul": 1}, 1, 4, 16, {"float32": 16}, 17, 8, (), outputs)
    scores = [{"metric": "snr", "value": db, "samples": 4}]
    with pytest.raises(Refused) if refused else nullcontext():
        judge_scores(request, scores, facts)
    judge_scores(replace(request, force=True), scores, facts)


def test_apply_looks_for_nan_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = write(tmp_path, OUTLIER), tmp_path / "out.onnx"
    apply(model, ["int8-dynamic"], out=out)
    out.unlink()
    # No kernel of a CPU is sure to overflow.
    monkeypatch.setattr(compare, "measure_snr_db", lambda *_: float("nan"))
    with pytest.raises(Refused, match="answers with NaN or infinity"):
        apply(model, ["int8-dynamic"], out=out)
    assert not out.exists()
    notes: list[str] = []
    apply(model, ["int8-dynamic"], out=out, force=True, sink=collect_notes(notes, ignore_event))
    assert out.exists() and any("NaN" in note for note in notes)


def test_apply_writes_nothing_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 8, opset_import: ["": 9]>
        g (float[1,2,3,3] x) => (float[1,2,3,3] y) { y = MeanVarianceNormalization(x) }"""
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    with pytest.raises(Refused, match="no float32 operator"):
        apply(model, ["fp16"], out=out)
    # Its body in the standard mixes types then, which no check of ours sees.
    monkeypatch.setattr(narrow, "FIXED", narrow.FIXED - {"MeanVarianceNormalization"})
    with pytest.raises(Refused, match="does not run where the source does"):
        apply(model, ["fp16"], out=out)
    assert not out.exists()


@pytest.mark.parametrize(
    "text",
    [MASK, pytest.param(TABLE, marks=pytest.mark.long), BODIES],
    ids=["mask", "table", "bodies"],
)
def test_what_the_runtime_folds_has_a_bound(text: str, tmp_path: Path) -> None:
    model, notes = write(tmp_path, text), list[str]()
    convert(model, tmp_path / "o.onnx", sink=collect_notes(notes, ignore_event))
    assert file.count_file_bytes(tmp_path / "o.onnx") < 100_000
    assert any("constants are not folded" in note for note in notes)


def test_a_file_that_grows_is_said_to(tmp_path: Path) -> None:
    model, notes = write(tmp_path, TABLE.replace("20000", "4000")), list[str]()
    convert(model, tmp_path / "o.onnx", sink=collect_notes(notes, ignore_event))
    assert any("the file grows from" in note for note in notes)
