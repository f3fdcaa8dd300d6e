"""What a detector keeps of the original's detections, and which heads are taken for a detector."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.data.derive import derive_budget
from ortune.metrics.detections import Detections

Array = NDArray[np.float32]
ANCHORS, CLASSES = 600, 5


def draw_scene(seed: int, objects: int = 4) -> tuple[Array, Array]:
    """Boxes [anchors, 4] as centre, width, height, and scores [anchors, classes]; each object is
    seen by three anchors."""
    rng = np.random.default_rng(seed)
    boxes = np.concatenate(
        [rng.uniform(0, 600, (ANCHORS, 2)), rng.uniform(30, 90, (ANCHORS, 2))], 1
    )
    scores = rng.uniform(0, 0.05, (ANCHORS, CLASSES))
    for number in range(objects):
        box = [100 + 120 * number, 300, 80, 60]
        rows = rng.choice(ANCHORS, 3, replace=False)
        boxes[rows] = box + rng.normal(0, 1, (3, 4))
        scores[rows, number % CLASSES] = rng.uniform(0.6, 0.9, 3)
    return boxes.astype(np.float32), scores.astype(np.float32)


def transposed(seed: int) -> dict[str, Array]:
    """A head [1, 4 + classes, anchors]."""
    return {"output0": np.concatenate(draw_scene(seed), 1).T[None]}


def with_objects(seed: int) -> dict[str, Array]:
    """A head [1, anchors, 5 + classes], whose class scores are high where no object is."""
    boxes, scores = draw_scene(seed)
    chance = scores.max(axis=1, keepdims=True)
    kinds = np.where(scores == chance, 0.95, 0.01).astype(np.float32)
    return {"output": np.concatenate([boxes, chance, kinds], 1)[None]}


def apart(seed: int) -> dict[str, Array]:
    boxes, scores = draw_scene(seed)
    return {"boxes": boxes[None], "scores": scores[None]}


def queries(seed: int) -> dict[str, Array]:
    """Logits with a last column for nothing, and boxes of each query."""
    boxes, scores = draw_scene(seed)
    nothing = 1 - scores.sum(axis=1, keepdims=True).clip(0, 0.97)
    logits = np.log(np.concatenate([scores, nothing], 1)).astype(np.float32)
    return {"logits": logits[None], "pred_boxes": (boxes / 640)[None]}


def listed(seed: int) -> dict[str, Array]:
    """Rows of corners, score and class, [1, anchors, 6]."""
    boxes, scores = draw_scene(seed)
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    found = [scores.max(1, keepdims=True), scores.argmax(1)[:, None]]
    return {"output0": np.concatenate([corners, *found], 1).astype(np.float32)[None]}


HEADS = [transposed, with_objects, apart, queries, listed]


@pytest.mark.parametrize("head", HEADS)
def test_a_detectors_head_is_judged_by_what_is_detected(head) -> None:  # type: ignore[no-untyped-def]
    samples = [head(seed) for seed in range(8)]
    outputs = {name: [sample[name] for sample in samples] for name in samples[0]}
    budget, rule = derive_budget(outputs)
    metric = budget.metric
    assert isinstance(metric, Detections) and budget.limit == 0.9, rule
    assert metric.groups, "dead outputs are still told"
    for sample in samples:
        share, count = metric.record(sample, sample, None)
        assert (share, count) == (1.0, 4.0), "three anchors are one object"
        rng = np.random.default_rng(0)
        near = {
            name: array * (1 + rng.normal(0, 0.003, array.shape)) for name, array in sample.items()
        }
        assert metric.record(sample, near, None)[0] > 0.9
        dead = {name: np.zeros_like(array) for name, array in sample.items()}
        assert metric.record(sample, dead, None)[0] == 0.0


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("moved by half a box", 0.75),
        ("another class", 0.75),
        ("not seen", 6 / 7),
        ("seen where nothing is", 8 / 9),
        ("hardly below the least score", 1.0),
    ],
)
def test_what_counts_as_kept(change: str, kept: float) -> None:
    boxes = np.array([[10, 10, 30, 30], [60, 10, 80, 30], [10, 60, 30, 80], [60, 60, 80, 80.0]])
    scores, classes = np.full(4, 0.8), np.arange(4)
    sample = {"boxes": boxes, "scores": scores, "classes": classes}
    other = {name: array.copy() for name, array in sample.items()}
    match change:
        case "moved by half a box":
            other["boxes"][0, [0, 2]] += 10
        case "another class":
            other["classes"][0] = 9
        case "not seen":
            other["scores"][0] = 0.1
        case "seen where nothing is":
            sample["scores"] = np.append(scores, 0.1)
            other["scores"] = np.append(scores, 0.8)
            for one in (sample, other):
                one["boxes"] = np.concatenate([boxes, [[200, 200, 220, 220]]])
                one["classes"] = np.append(classes, 1)
        case _:
            sample["scores"][0], other["scores"][0] = 0.26, 0.24
    metric = Detections(boxes="boxes", scores="scores", classes="classes", layout="xyxy")
    assert metric.record(sample, other, None)[0] == pytest.approx(kept)


def test_it_is_spelled_like_other_budgets() -> None:
    budget = Budget.parse('detections(head="output0", least=0.4)>=0.95')
    assert isinstance(budget.metric, Detections) and budget.metric.least == 0.4
    assert Budget.parse(str(budget)) == budget


def test_other_outputs_are_no_detectors() -> None:
    rng = np.random.default_rng(0)
    maps = {"features": [rng.normal(size=(1, 8, 400)).astype(np.float32) for _ in range(3)]}
    empty = {"output0": [transposed(seed)["output0"] * 0.1 for seed in range(3)]}
    for outputs in (maps, empty):
        assert not isinstance(derive_budget(outputs)[0].metric, Detections)
