"""Derived budgets on outputs that are dead or swapped, and on good roundings of the same models.

    python -m benchmarks.accuracy.dead_outputs

Models are drawn: what their kinds answer, with noise in the values before they are shown. Each is
judged on 320 samples by the budget that 64 others give. No time is measured here.
Results: ``benchmarks/results/dead_outputs.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.result_files import RESULTS, write_results
from ortune.core.budget import Budget
from ortune.core.trial import Score
from ortune.data.derive import derive_budget
from ortune.measurement.accuracy import judge_accuracy
from ortune.metrics.common.fidelity import find_worst_group

Sample = dict[str, NDArray[Any]]
Change = Callable[[Sample], Sample]
LOOKED, COUNT = 64, 320
GATES = ("input", "output", "forget", "cell")
BFLOAT16, INT8 = 0.02, 0.1
"""Standard deviations of the noise that the two leave in good models, over that of the values."""
STATES = ("state", "present")
"""Outputs that their models take at the next step."""
NOISES = (INT8, 0.2, 0.4)


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


def draw_decisions(kind: str, rng: np.random.Generator, noise: Callable[..., Any]) -> Sample:
    """Return the outputs of a model whose class scores decide."""
    match kind:
        case "classifier":
            values = draw_logits(rng, 10)
            return {"logits": values + noise(values.shape)}
        case "unsure classifier":
            values = rng.standard_normal((1, 10)) / 2
            values[0, rng.integers(10)] += 3
            return {"logits": values + noise(values.shape) / 4}
        case "softmax":
            values = draw_logits(rng, 10)
            return {"out": softmax(values + noise(values.shape))}
        case "labels":
            values = np.where(rng.random((1, 14)) < 0.1, 4.0, -5) + rng.standard_normal((1, 14))
            return {"out": sigmoid(values + noise(values.shape))}
    words, classes = (rng.integers(3, 8), 9) if kind == "tags of words" else (3, 1500)
    values = np.stack([draw_logits(rng, classes)[0] for _ in range(words)])[None]
    outputs = {"logits": values + noise(values.shape)}
    if kind == "generator":
        cache = rng.standard_normal((1, 4, words, 16)) * np.array([3, 1, 1, 0.3]).reshape(4, 1, 1)
        outputs["present"] = cache * (1 + noise(cache.shape) / 5)
    return outputs


def answer(kind: str, seed: int, error: float = 0.0, dead: str = "") -> Sample:
    """Return one sample's outputs, as float32, with errors in the values before they are shown.

    Args:
        error: Standard deviation of the noise, over that of the values.
        dead: A gate of the LSTM.
    """
    rng, draw = np.random.default_rng(seed), np.random.default_rng(10**6 + seed).standard_normal

    def noise(shape: tuple[int, ...]) -> NDArray[Any]:
        return np.asarray(error * draw(shape))

    match kind:
        case (
            "classifier"
            | "unsure classifier"
            | "softmax"
            | "labels"
            | "tags of words"
            | "generator"
        ):
            outputs = draw_decisions(kind, rng, noise)
        case "detector":
            boxes = 320 + 80 * rng.standard_normal((1, 50, 4))
            scores = rng.standard_normal((1, 50, 8)) - 6
            scores[0, rng.integers(50, size=3), rng.integers(8, size=3)] = 3
            outputs = {
                "boxes": boxes + 10 * noise(boxes.shape),
                "conf": sigmoid(scores + noise(scores.shape)),
            }
        case "head":
            outputs = {"output0": draw_head(rng, error)}
        case "voice":
            speech = np.where(rng.random((1, 1)) < 0.4, 4.0, -5) + rng.standard_normal((1, 1))
            states = rng.standard_normal((2, 1, 64)) * np.array([0.3, 3]).reshape(2, 1, 1)
            outputs = {
                "prob": sigmoid(speech + noise((1, 1))),
                "state": states * (1 + noise(states.shape) / 5),
            }
        case "age and gender":
            values = np.array([[-2.0, 2, 0.35]]) * [rng.choice([-1, 1]), 1, 1]
            values[0, 1] = -values[0, 0]
            values += [[0.3, 0.3, 0.1]] * rng.standard_normal((1, 3))
            outputs = {"fc1": values + noise((1, 3)) / 10}
        case "map":
            values = rng.standard_normal((1, 4, 16, 16)) * np.array([9, 1, 1, 0.1]).reshape(
                4, 1, 1
            )
            outputs = {"mask": values * (1 + noise(values.shape) / 10)}
        case "masks":
            regions = rng.integers(5, size=(4, 4)).repeat(6, 0).repeat(6, 1)
            values = rng.standard_normal((1, 5, 24, 24))
            values += 8 * (np.arange(5)[:, None, None] == regions)
            outputs = {"logits": values + noise(values.shape)}
        case "embedding":
            values = 0.5 + rng.standard_normal((1, 48))
            values += noise(values.shape) / 5
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


@cache
def draw_reference(kind: str) -> tuple[Budget, str, list[Sample], Any, NDArray[np.float64]]:
    """Return the budget and its rule, the outputs compared with, their mean and their records."""
    looked = [answer(kind, seed) for seed in range(LOOKED)]
    budget, rule = derive_budget(
        {name: [one[name] for one in looked] for name in looked[0]}, states=STATES
    )
    expected = [answer(kind, seed) for seed in range(LOOKED, LOOKED + COUNT)]
    mean = budget.metric.average_expected(expected)
    records = budget.metric.records(expected, expected, None, None, mean)
    return budget, rule, expected, mean, records


def change_outputs(
    kind: str, change: Change | None = None, error: float = 0.0, dead: str = ""
) -> list[Sample]:
    """Return what a changed model answers to the samples that judge it."""
    actual = [answer(kind, seed, error, dead) for seed in range(LOOKED, LOOKED + COUNT)]
    return actual if change is None else [change(one) for one in actual]


def judge(kind: str, actual: list[Sample]) -> tuple[Score, float]:
    """Return the verdict on changed outputs, and by how many dB their worst group follows."""
    budget, _, expected, mean, records = draw_reference(kind)
    metric: Any = budget.metric
    table = metric.records(expected, actual, None, None, mean)
    length = int(table[0, -1])
    decibels, _ = find_worst_group(metric.groups, table[:, -1 - length : -1])
    return judge_accuracy(budget, table, records), decibels


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


def scale(name: str, by: float) -> Change:
    """Multiply an output."""
    return lambda sample: {**sample, name: sample[name] * np.float32(by)}


DEAD: Mapping[str, tuple[str, Change | str]] = {
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
    "confidence, halved": ("unsure classifier", scale("logits", 0.55)),
    "a constant softmax": ("softmax", fill("out", ..., value=0.1)),
    "two classes, swapped": ("classifier", swap("logits", 1, 0, 1)),
    "a tag of words": ("tags of words", fill("logits", ..., 3, value=0.4)),
    "gender, flipped": ("age and gender", swap("fc1", 1, 0, 1)),
    "age": ("age and gender", fill("fc1", 0, 2, value=0.35)),
    "a quiet channel of a map": ("map", fill("mask", 0, 3)),
    "a class of masks": ("masks", fill("logits", 0, 3)),
    "two classes of masks, swapped": ("masks", swap("logits", 1, 0, 1)),
    "an embedding": ("embedding", fill("out", ..., value=1 / 48**0.5)),
    "a rare flag": ("flag", fill("fault", ..., value=False)),
    "half of the vocabulary": ("generator", fill("logits", ..., slice(750))),
    "a quiet head of the cache": ("generator", fill("present", 0, 3)),
    **{f"the {gate} gate": ("lstm", gate) for gate in GATES},
}


DECODED: Mapping[str, Callable[[Sample], NDArray[Any]] | None] = {
    "classifier": lambda one: one["logits"].argmax(-1),
    "unsure classifier": lambda one: one["logits"].argmax(-1),
    "softmax": lambda one: one["out"].argmax(-1),
    "tags of words": lambda one: one["logits"].argmax(-1),
    "labels": lambda one: one["out"] > 0.5,
    "detector": lambda one: one["conf"] > 0.5,
    "head": lambda one: one["output0"][:, 4:] > 0.5,
    "voice": lambda one: one["prob"] > 0.5,
    "age and gender": lambda one: one["fc1"][:, :2].argmax(-1),
    "map": lambda one: one["mask"].argmax(1),
    "masks": lambda one: one["logits"].argmax(1),
    "generator": lambda one: one["logits"].argmax(-1),
    "embedding": None,
    "lstm": None,
}
"""Kind -> what is made of its outputs in the end, where that is a decision."""


def round_values(sample: Sample) -> Sample:
    """Round floats to bfloat16."""
    return {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float32)
        if array.dtype.kind == "f"
        else array
        for name, array in sample.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "dead_outputs.json")
    asked = parser.parse_args()
    dead = []
    for name, (kind, change) in DEAD.items():
        changed = change_dead(kind, change)
        score, decibels = judge(kind, changed)
        dead.append(
            {"model": kind, "dead": name, "verdict": str(score.verdict),
             "group, dB": round(decibels, 1) + 0.0, "basis": score.basis}
        )  # fmt: skip
        print(f"{kind}: {name}: {score.verdict}, {decibels:.1f} dB", flush=True)
    noisy = []
    for kind in DECODED:
        budget, rule, *_ = draw_reference(kind)
        cells = []
        for error, change in ((BFLOAT16, round_values), *((error, None) for error in NOISES)):
            changed = change_outputs(kind, change, error)
            score, decibels = judge(kind, changed)
            alike = count_alike(kind, changed)
            cells.append(
                {"noise": error, "rounded": change is not None, "verdict": str(score.verdict),
                 "group, dB": round(decibels, 1) + 0.0, "decoded alike": alike}
            )  # fmt: skip
            print(f"{kind}: {cells[-1]}", flush=True)
        noisy.append({"model": kind, "budget": str(budget), "rule": rule, "cells": cells})
    write_results(asked.out, {"samples": COUNT, "dead": dead, "noisy": noisy})


def change_dead(kind: str, change: Change | str) -> list[Sample]:
    """Return outputs of which a part is dead or swapped, or those of an LSTM with a dead gate."""
    if isinstance(change, str):
        return change_outputs(kind, dead=change)
    return change_outputs(kind, change)


def count_alike(kind: str, actual: list[Sample]) -> int | None:
    """Return how many samples are decoded as before; None where nothing is decided."""
    decode = DECODED[kind]
    if decode is None:
        return None
    pairs = zip(draw_reference(kind)[2], actual, strict=True)
    return sum(bool((decode(one) == decode(other)).all()) for one, other in pairs)


if __name__ == "__main__":
    main()
