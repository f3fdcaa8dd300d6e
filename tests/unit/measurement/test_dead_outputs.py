"""A derived budget: nothing dead or swapped passes it, and good roundings do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ortune.core.trial import Score, Verdict
from ortune.data.derive import derive_budget
from ortune.measurement.accuracy import judge_accuracy

Sample = dict[str, NDArray[Any]]
Change = Callable[[Sample], Sample]
COUNT = 320
GATES = ("input", "output", "forget", "cell")


def sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-values)))


def softmax(values: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def draw_logits(rng: np.random.Generator, classes: int) -> NDArray[Any]:
    """A classifier's: one class in front, the others some way behind."""
    values = rng.standard_normal((1, classes))
    values[0, rng.integers(classes)] += 8
    return values


def draw_head(rng: np.random.Generator, error: float) -> NDArray[Any]:
    """A YOLO head [1, 84, 100]: boxes in pixels near their places, and rare classes."""
    grid = np.stack(np.meshgrid(np.arange(10), np.arange(10)), 0).reshape(2, 100) * 64.0 + 32
    boxes = np.concatenate([grid, np.full((2, 100), 80.0)]) + 12 * rng.standard_normal((4, 100))
    classes = rng.standard_normal((80, 100)) - 7
    classes[rng.integers(80, size=5), rng.integers(100, size=5)] = 3 + rng.random(5)
    noise = np.random.default_rng(7).standard_normal
    boxes += 20 * error * noise(boxes.shape)
    return np.concatenate([boxes, sigmoid(classes + 4 * error * noise(classes.shape))])[None]


def run_lstm(rng: np.random.Generator, error: float, dead: str = "") -> Sample:
    """Six steps of an LSTM with 24 units, one gate of which may always answer the same."""
    weights = np.random.default_rng(3).standard_normal((4, 24, 32)) / 3
    weights = weights + error * np.random.default_rng(4).standard_normal(weights.shape) / 3
    state, cell = np.zeros(24), np.zeros(24)
    for _ in range(6):
        fed = np.concatenate([2 * rng.standard_normal(8), state])
        gates = dict(zip(GATES, weights @ fed, strict=True))
        if dead:
            gates[dead] = np.zeros(24)
        kept = sigmoid(gates["forget"]) * cell
        cell = kept + sigmoid(gates["input"]) * np.tanh(gates["cell"])
        state = sigmoid(gates["output"]) * np.tanh(cell)
    return {"y": state[None], "state": np.stack([state, cell])[:, None]}


def answer(kind: str, seed: int, error: float = 0.0, dead: str = "") -> Sample:
    """Return one sample's outputs, as float32, with errors in the values before they are shown.

    Args:
        error: Standard deviation of the noise, over that of the values.
        dead: A gate of the LSTM.
    """
    rng, noise = np.random.default_rng(seed), np.random.default_rng(10**6 + seed).standard_normal
    match kind:
        case "classifier":
            values = draw_logits(rng, 10)
            outputs = {"logits": values + error * noise(values.shape)}
        case "softmax":
            values = draw_logits(rng, 10)
            outputs = {"out": softmax(values + error * noise(values.shape))}
        case "tags of words":
            values = np.stack([draw_logits(rng, 9)[0] for _ in range(3 + seed % 5)])[None]
            outputs = {"logits": values + error * noise(values.shape)}
        case "labels":
            values = np.where(rng.random((1, 14)) < 0.1, 4.0, -5) + rng.standard_normal((1, 14))
            outputs = {"out": sigmoid(values + error * noise(values.shape))}
        case "detector":
            boxes = 320 + 80 * rng.standard_normal((1, 50, 4))
            scores = rng.standard_normal((1, 50, 8)) - 6
            scores[0, rng.integers(50, size=3), rng.integers(8, size=3)] = 3
            outputs = {
                "boxes": boxes + 10 * error * noise(boxes.shape),
                "conf": sigmoid(scores + error * noise(scores.shape)),
            }
        case "head":
            outputs = {"output0": draw_head(rng, error)}
        case "voice":
            speech = np.where(rng.random((1, 1)) < 0.4, 4.0, -5) + rng.standard_normal((1, 1))
            states = rng.standard_normal((2, 1, 64)) * np.array([0.3, 3]).reshape(2, 1, 1)
            outputs = {
                "prob": sigmoid(speech + error * noise((1, 1))),
                "state": states * (1 + error / 5 * noise(states.shape)),
            }
        case "age and gender":
            values = np.array([[-2.0, 2, 0.35]]) * [rng.choice([-1, 1]), 1, 1]
            values[0, 1] = -values[0, 0]
            values += [[0.3, 0.3, 0.1]] * rng.standard_normal((1, 3))
            outputs = {"fc1": values + error / 10 * noise((1, 3))}
        case "map":
            values = rng.standard_normal((1, 4, 16, 16)) * np.array([9, 1, 1, 0.1]).reshape(
                4, 1, 1
            )
            outputs = {"mask": values * (1 + error / 10 * noise(values.shape))}
        case "embedding":
            values = 0.5 + rng.standard_normal((1, 48))
            values += error / 5 * noise(values.shape)
            outputs = {"out": values / np.linalg.norm(values)}
        case "flag":
            outputs = {"fault": np.array([seed % 250 == 80]), "ids": rng.integers(0, 9, (1, 4))}
        case "lstm":
            outputs = run_lstm(rng, error / 20, dead)
        case _:
            raise AssertionError(kind)
    return {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in outputs.items()
    }


def judge(kind: str, change: Change | None = None, error: float = 0.0, dead: str = "") -> Score:
    """Judge changed outputs by the budget that 64 others give."""
    looked = [answer(kind, seed) for seed in range(64)]
    budget, _ = derive_budget({name: [one[name] for one in looked] for name in looked[0]})
    expected = [answer(kind, seed) for seed in range(64, 64 + COUNT)]
    actual = [answer(kind, seed, error, dead) for seed in range(64, 64 + COUNT)]
    if change is not None:
        actual = [change(one) for one in actual]
    mean = budget.metric.average_expected(expected)
    tables = [
        budget.metric.records(expected, side, None, None, mean) for side in (actual, expected)
    ]
    return judge_accuracy(budget, *tables)


def fill(name: str, *place: Any, value: float = 0.0) -> Change:
    """Put a part of an output to one value for all samples."""

    def change(sample: Sample) -> Sample:
        array = sample[name].copy()
        array[place] = value
        return {**sample, name: array}

    return change


def swap(name: str, axis: int, first: int, second: int) -> Change:
    """Exchange two places along an axis."""

    def change(sample: Sample) -> Sample:
        order = np.arange(sample[name].shape[axis])
        order[[first, second]] = second, first
        return {**sample, name: np.take(sample[name], order, axis)}

    return change


DEAD: dict[str, tuple[str, Change]] = {
    "all scores of a detector": ("detector", fill("conf", ...)),
    "one class of a detector": ("detector", fill("conf", ..., 5, value=0.02)),
    "the boxes of a detector": ("detector", fill("boxes", ..., value=320)),
    "80 classes of a head": ("head", fill("output0", 0, slice(4, 84))),
    "one class of a head": ("head", fill("output0", 0, 40, value=0.001)),
    "the widths of a head": ("head", fill("output0", 0, 2, value=80)),
    "two classes of a head, swapped": ("head", swap("output0", 1, 9, 17)),
    "a voice detector's probability": ("voice", fill("prob", ..., value=0.4)),
    "half of a voice detector's state": ("voice", fill("state", 0)),
    "one of fourteen labels": ("labels", fill("out", 0, 11, value=0.1)),
    "two of fourteen labels, swapped": ("labels", swap("out", 1, 2, 12)),
    "a constant logit": ("classifier", fill("logits", 0, 4)),
    "a constant softmax": ("softmax", fill("out", ..., value=0.1)),
    "two classes, swapped": ("classifier", swap("logits", 1, 0, 1)),
    "a tag of words": ("tags of words", fill("logits", ..., 3, value=0.4)),
    "gender, flipped": ("age and gender", swap("fc1", 1, 0, 1)),
    "age": ("age and gender", fill("fc1", 0, 2, value=0.35)),
    "a quiet channel of a map": ("map", fill("mask", 0, 3)),
    "an embedding": ("embedding", fill("out", ..., value=1 / 48**0.5)),
    "a rare flag": ("flag", fill("fault", ..., value=False)),
}


@pytest.mark.parametrize("name", DEAD)
def test_what_is_dead_or_swapped_fails(name: str) -> None:
    kind, change = DEAD[name]
    assert judge(kind, change).verdict is Verdict.FAILS


def test_the_verdict_names_the_group() -> None:
    score = judge("head", fill("output0", 0, 40, value=0.001))
    assert "place 40 of 84 along axis 1 of output 'output0' does not follow" in score.basis
    assert score.claim.endswith("and each group of outputs follows")


@pytest.mark.parametrize("gate", GATES)
def test_a_dead_gate_fails(gate: str) -> None:
    assert judge("lstm", dead=gate).verdict is Verdict.FAILS


KINDS = (
    "classifier",
    "softmax",
    "tags of words",
    "labels",
    "detector",
    "head",
    "voice",
    "age and gender",
    "map",
    "embedding",
    "lstm",
)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_passes(kind: str) -> None:
    def round_values(sample: Sample) -> Sample:
        return {n: a.astype(ml_dtypes.bfloat16).astype(np.float32) for n, a in sample.items()}

    assert judge(kind, round_values, error=0.02).verdict is Verdict.PROVED


@pytest.mark.parametrize("kind", KINDS)
def test_good_int8_passes(kind: str) -> None:
    assert judge(kind, error=0.1).verdict is Verdict.PROVED
