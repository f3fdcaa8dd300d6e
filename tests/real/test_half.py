"""float16 on real networks that overflow: what data names, in float32, gives right answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from ortune.core.step import Recipe
from ortune.data import feeds
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.quantizers.fp16 import Fp16
from ortune.search.recipe.build import build
from tests.real.jobs import magika, ppocr_det
from tests.real.task import installed
from tests.true_half import rounded

Sample = dict[str, NDArray[np.generic]]


def answers(path: Path, samples: Sequence[Sample]) -> list[NDArray[np.generic]]:
    """Run without fusing: a fused operator would not round what lies in it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(session.run(None, sample)[0]) for sample in samples]


def snrs(source: Path, samples: Sequence[Sample], folder: Path) -> tuple[str, float, float]:
    """Return the notes, and the SNR without and with data; the last sample judges."""
    (folder / "data").mkdir()
    for index, sample in enumerate(samples[:-1]):
        np.savez(folder / "data" / f"{index}.npz", **sample)
    given = feeds.load_feeds(folder / "data", edit.list_inputs(file.load(source)), folder)
    (wanted,) = answers(source, samples[-1:])
    found = []
    for name, data in (("plain", None), ("learned", given)):
        built = build(source, Recipe(name, (Fp16(),)), folder / f"{name}.onnx", feeds=data)
        exact = file.save(rounded(file.load(built.path), sums=True), folder / f"{name}32.onnx")
        (actual,) = answers(exact, samples[-1:])
        noise = np.square(actual.astype(np.float64) - wanted).sum()
        found.append(float(10 * np.log10(np.square(wanted.astype(np.float64)).sum() / noise)))
    return built.edits[-1].note, found[0], found[1]


@pytest.mark.long
def test_a_detector_whose_means_come_near_overflow(tmp_path: Path) -> None:
    if reason := ppocr_det.missing():
        pytest.skip(reason)
    source = installed("rapidocr", "rapidocr/models/PP-OCRv6_det_small.onnx")
    samples = [{"x": pixels} for pixels, _ in ppocr_det.pages()]
    note, _, learned = snrs(source, samples, tmp_path)
    assert learned > 50
    assert note.startswith("left in float32: 3 nodes; 3 of them by measured ranges: ReduceMean")
    assert note.count("(sum ") == 3


@pytest.mark.long
def test_a_layer_norm_that_overflows(tmp_path: Path) -> None:
    if reason := magika.missing():
        pytest.skip(reason)
    data, _ = magika.pieces()
    samples = [{"bytes": data[index : index + 1]} for index in range(0, len(data), 8)]
    note, plain, learned = snrs(magika._file("model.onnx"), samples, tmp_path)
    assert not plain > 20
    assert learned > 35
    assert "LayerNorm_1/Sum_1 (overflow" in note
