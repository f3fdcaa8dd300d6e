"""Mean average precision: equal to pycocotools, and what outputs and labels may look like."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.metric import Kind, Metric, stack_records
from ortune.core.plugins import codec, stored
from ortune.core.plugins.spelling import parse_plugin
from ortune.measurement.accuracy import judge_accuracy, warn_coarse_budget
from ortune.metrics.map import Map

CORNER = st.integers(0, 40).map(float)
SIDE = st.integers(1, 24).map(float)
SCORE = st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9])
"""Few, so that scores tie."""


@st.composite
def pictures(draw: Any) -> list[tuple[list[Any], list[Any]]]:
    """Detections (x, y, w, h, score, class) and labels (x, y, w, h, class, crowd) a picture."""
    found = st.tuples(CORNER, CORNER, SIDE, SIDE, SCORE, st.integers(0, 3))
    truth = st.tuples(CORNER, CORNER, SIDE, SIDE, st.integers(0, 3), st.integers(0, 9))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(truth, max_size=6))
        near = [
            (x + draw(st.integers(-2, 2)), y, w, h + draw(st.integers(0, 2)), draw(SCORE), c)
            for x, y, w, h, c, _ in labels
            if draw(st.booleans())
        ]
        boxes = near + draw(st.lists(found, max_size=5))
        made.append((boxes, [(*one[:5], one[5] == 0) for one in labels]))
    return made


def coco(made: list[tuple[list[Any], list[Any]]], at: float = 0.0) -> float:
    """Return what pycocotools makes of it; NaN for its -1."""
    truth, found = [], []
    for image, (boxes, labels) in enumerate(made):
        for x, y, w, h, kind, crowd in labels:
            one = {"id": len(truth) + 1, "image_id": image, "category_id": kind}
            truth.append(one | {"bbox": [x, y, w, h], "area": w * h, "iscrowd": int(crowd)})
        for x, y, w, h, score, kind in boxes:
            one = {"image_id": image, "category_id": kind, "score": score}
            found.append(one | {"bbox": [x, y, w, h]})
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {
            "images": [{"id": at} for at in range(len(made))],
            "annotations": truth,
            "categories": [{"id": at} for at in range(4)],
        }
        data.createIndex()
        if not found:
            return 0.0 if any(not one["iscrowd"] for one in truth) else math.nan
        judged = COCOeval(data, data.loadRes(found), "bbox")
        judged.evaluate()
        judged.accumulate()
    precision = judged.eval["precision"][:, :, :, 0, -1]
    if at:
        precision = precision[judged.params.iouThrs == at]
    real = precision[precision > -1]
    return float(real.mean()) if real.size else math.nan


def records(metric: Map, made: list[tuple[list[Any], list[Any]]]) -> np.ndarray:
    outputs, labels = [], []
    for boxes, truth in made:
        rows = np.array(boxes, np.float64).reshape(-1, 6)
        outputs.append({"boxes": rows[:, :4], "scores": rows[:, 4], "classes": rows[:, 5]})
        labels.append(
            [[x, y, x + w, y + h, kind, float(crowd)] for x, y, w, h, kind, crowd in truth]
        )
    return metric.records(outputs, outputs, labels)


@settings(deadline=None, max_examples=80)
@given(made=pictures(), at=st.sampled_from([0.0, 0.5, 0.75]))
def test_it_equals_pycocotools(made: list[Any], at: float) -> None:
    metric = Map(classes="classes", layout="xywh", iou=at)
    own, theirs = metric.aggregate(records(metric, made)), coco(made, at)
    assert own == pytest.approx(theirs, abs=1e-12, nan_ok=True)


def test_it_equals_pycocotools_where_more_than_a_hundred_are_found() -> None:
    rng = np.random.default_rng(5)
    made = []
    for _ in range(3):
        labels = [(*rng.uniform(0, 300, 2), *rng.uniform(8, 60, 2), 1, False) for _ in range(130)]
        boxes = [
            (x + rng.normal(0, 2), y, w * rng.uniform(0.8, 1.2), h, rng.uniform(), 1)
            for x, y, w, h, *_ in labels
        ]
        made.append((boxes, labels))
    metric = Map(classes="classes", layout="xywh")
    assert metric.aggregate(records(metric, made)) == pytest.approx(coco(made), abs=1e-12)


TRUTH = [[0.0, 0.0, 10.0, 10.0, 1], [20.0, 20.0, 40.0, 30.0, 0]]
BOXES = np.array([[0, 0, 10, 10], [20, 20, 40, 30], [50, 50, 60, 60]], np.float32)
SCORES = np.array([0.9, 0.8, 0.1], np.float32)
CLASSES = np.array([1, 0, 1])


def score(metric: Map, outputs: dict[str, np.ndarray], label: Any = TRUTH) -> float:
    return round(metric.aggregate(metric.records([outputs], [outputs], [label])), 12)


def test_what_outputs_may_look_like() -> None:
    plain = {"boxes": BOXES, "scores": SCORES, "c": CLASSES}
    assert score(Map(classes="c"), plain) == 1
    assert score(Map(classes="c"), {k: v[None] for k, v in plain.items()}) == 1
    centred = (BOXES[:, :2] + BOXES[:, 2:]) / 2
    sides = BOXES[:, 2:] - BOXES[:, :2]
    other = {"b": np.hstack([centred, sides]), "s": SCORES, "c": CLASSES}
    assert score(Map(boxes="b", scores="s", classes="c", layout="cxcywh"), other) == 1
    flat = np.zeros((3, 2))
    flat[np.arange(3), CLASSES] = SCORES
    assert score(Map(), {"boxes": BOXES, "scores": flat}) == 1
    assert score(Map(), {"boxes": BOXES[None, :2], "scores": flat[None, :2].swapaxes(1, 2)}) == 1
    padded = {
        "boxes": np.concatenate([BOXES, BOXES]),
        "scores": np.tile(SCORES, 2),
        "c": np.array([1, 0, 1, -1, -1, -1]),
        "n": np.array([[2]]),
    }
    assert score(Map(classes="c"), padded) == 1
    assert (
        Map(classes="c", valid="n").record(padded, padded, TRUTH)
        == (Map(classes="c").record({k: v[:2] for k, v in padded.items()}, padded, TRUTH)[:11])
    )


def test_suppression_and_the_least_score() -> None:
    double = {
        "boxes": np.concatenate([BOXES[:2], BOXES[:2] + 1]),
        "scores": np.array([0.5, 0.8, 0.9, 0.1]),
        "c": np.array([1, 0, 1, 0]),
    }
    wanted = score(Map(classes="c"), {k: v[[2, 1]] for k, v in double.items()})
    assert score(Map(classes="c", nms=0.5), double) == wanted
    assert len(Map(classes="c", nms=0.5).record(double, double, TRUTH)) == 5 + 2 * 3
    assert len(Map(classes="c", nms=0.9).record(double, double, TRUTH)) == 5 + 4 * 3
    assert len(Map(classes="c", least=0.5).record(double, double, TRUTH)) == 5 + 3 * 3


def test_labels_of_a_coco_file_bring_the_size_of_their_picture() -> None:
    label = {
        "boxes": [[0, 0, 20, 5], [40, 10, 40, 5]],
        "classes": [1, 0],
        "ids": [7, 3],
        "crowd": [0, 0],
        "size": [200, 50],
    }
    outputs = {"boxes": BOXES / 100, "scores": SCORES, "c": CLASSES}
    assert score(Map(classes="c", frame=(1, 1)), outputs, label) == 1
    assert score(Map(classes="c"), outputs, label) == 0
    ids = outputs | {"c": np.array([7, 3, 7])}
    assert score(Map(classes="c", frame=(1, 1), ids=True), ids, label) == 1


@pytest.mark.parametrize("label", [[], np.zeros((0, 5)), [[0, 0, 1, 1, -1]], [[np.nan] * 5]])
def test_a_picture_without_boxes_counts_only_what_is_found(label: Any) -> None:
    outputs = {"boxes": BOXES, "scores": SCORES, "c": CLASSES}
    metric = Map(classes="c")
    alone = metric.records([outputs], [outputs], [label])
    assert math.isnan(metric.aggregate(alone))
    assert metric.each(alone).tolist() == [0.0]
    good = metric.records([outputs], [outputs], [TRUTH])
    both = stack_records([good, alone])
    assert metric.each(both) == pytest.approx([1.0, 0.0])
    assert 0.5 < metric.aggregate(both) < 1


def test_what_is_broken_is_not_a_number() -> None:
    metric, good = Map(classes="c"), {"boxes": BOXES, "scores": SCORES, "c": CLASSES}
    bad = good | {"boxes": BOXES * np.nan}
    for actual in (bad, {}):
        rows = metric.records([good, good], [actual, good], [TRUTH, TRUTH])
        assert math.isnan(metric.aggregate(rows))
        assert math.isnan(metric.each(rows)[0])


@pytest.mark.parametrize(
    ("metric", "outputs", "label", "what"),
    [
        (Map(), {"y": BOXES}, TRUTH, "no output 'boxes'; its outputs are y"),
        (Map(), {"boxes": BOXES, "scores": SCORES[:2]}, TRUTH, "3 boxes and 2 scores"),
        (Map(), {"boxes": BOXES.T[:3], "scores": SCORES}, TRUTH, r"shape \[3, 3\]"),
        (Map(), {"boxes": np.stack([BOXES] * 2), "scores": SCORES}, TRUTH, "than one picture"),
        (Map(), {"boxes": BOXES, "scores": SCORES}, 3, "no list of boxes"),
        (Map(), {"boxes": BOXES, "scores": SCORES}, "cat", "no list of boxes"),
        (Map(), {"boxes": BOXES, "scores": SCORES}, {"boxes": [[1, 2, 3, 4]]}, "no list of boxes"),
        (Map(valid="s"), {"boxes": BOXES, "scores": SCORES, "s": SCORES}, TRUTH, "3 numbers"),
    ],
)
def test_what_does_not_fit_is_two_lines(
    metric: Map, outputs: dict[str, Any], label: Any, what: str
) -> None:
    with pytest.raises(BadData, match=rf"{what}.*\n  fix: "):
        metric.records([outputs], [outputs], [label])
    with pytest.raises(BadData, match="map needs labels"):
        metric.records([outputs], [outputs], None)


MODULE = """
import numpy as np

def decode(outputs, inputs):
    scale = inputs["image"].shape[-1]
    return outputs["y"][0, :, :4] * scale, outputs["y"][0, :, 4], outputs["y"][0, :, 5]

def fails(outputs, inputs):
    return outputs["z"]

def one(outputs):
    return []
"""


def test_a_function_decodes_with_the_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_detector.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    metric = parse_plugin(Metric, "map(decode=own_detector:decode)")
    assert metric.reads_inputs
    assert not Map().reads_inputs
    outputs = {"y": np.hstack([BOXES / 64, SCORES[:, None], CLASSES[:, None]])[None]}
    fed = {"image": np.zeros((1, 3, 64, 64), np.float32)}
    rows = metric.records([outputs], [outputs], [TRUTH], [fed])
    assert metric.aggregate(rows) == pytest.approx(1)
    assert metric.reads(outputs, TRUTH) == {"y"}
    for name, what in (("fails", "fails: KeyError"), ("one", "not a decode function")):
        broken = Map(decode=f"own_detector:{name}")
        with pytest.raises((BadData, BadSettings), match=rf"{what}.*\n  fix: "):
            broken.records([outputs], [outputs], [TRUTH], [fed])


def test_without_pycocotools_two_lines_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = {"boxes": BOXES, "scores": SCORES, "c": CLASSES}
    rows = Map(classes="c").records([outputs], [outputs], [TRUTH])
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    assert Map(classes="c").aggregate(rows) == pytest.approx(1)
    with pytest.raises(OrtuneError, match=r"map needs pycocotools.*\n  fix: pip install"):
        Map(classes="c").records([outputs], [outputs], [TRUTH])


def test_its_spelling_and_what_a_stored_run_may_name() -> None:
    budget = Budget.parse("map(boxes=b, scores=s, iou=0.5, nms=0.6)>=base-0.01")
    assert Budget.parse(str(budget)) == budget
    assert codec.decode(Metric, codec.encode(budget.metric)) == budget.metric
    assert stored.list_code_names(codec.encode(Map(decode="a.b:c"))) == ("a.b:c",)
    with pytest.raises(BadSettings, match="decode stands in the place"):
        Map(decode="a:b", boxes="x")
    with pytest.raises(BadSettings, match="frame is"):
        Map(frame=(1, 2, 3))


def test_it_is_a_figure_and_likely_at_best() -> None:
    metric = Map(classes="c")
    assert metric.kind() is Kind.FIGURE
    outputs = {"boxes": BOXES, "scores": SCORES, "c": CLASSES}
    base = stack_records([metric.records([outputs], [outputs], [TRUTH])] * 40)
    moved = outputs | {"boxes": BOXES + 0.2}
    own = stack_records([metric.records([outputs], [moved], [TRUTH])] * 40)
    budget = Budget(metric, -0.5, relative=True)
    found = judge_accuracy(budget, own, base)
    assert (found.verdict, found.samples) == ("likely", 40)
    assert "a figure is not proved" in found.basis
    assert judge_accuracy(Budget(metric, 0.0, relative=True), own, base).verdict == "fails"
    assert warn_coarse_budget(budget, 40, base) == ""
