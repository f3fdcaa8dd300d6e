"""Simplify on real networks: what an exporter left over goes, the answers stay as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from ortune.graph.io import file
from ortune.transforms.simplify import Simplify
from tests.real.task import installed

OCR = "rapidocr/models/PP-OCRv6_{}_small.onnx"


def answer(path: Path, pixels: NDArray[np.float32]) -> NDArray[np.float64]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": pixels})[0], np.float64)


@pytest.mark.parametrize(
    ("part", "size", "identities", "nodes"),
    [("det", (1, 3, 64, 96), 147, 317), ("rec", (1, 3, 48, 96), 135, 337)],
)
def test_text_recognition_loses_its_identities(
    part: str, size: tuple[int, ...], identities: int, nodes: int, tmp_path: Path
) -> None:
    source = installed("rapidocr", OCR.format(part))
    model = file.load(source)
    before = Counter(node.op_type for node in model.graph.all_nodes())
    assert before["Identity"] == identities
    Simplify().apply(model)
    after = Counter(node.op_type for node in model.graph.all_nodes())
    assert after["Identity"] == 0 and sum(after.values()) <= nodes
    pixels = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    wanted = answer(source, pixels)
    found = answer(file.save(model, tmp_path / "m.onnx"), pixels)
    noise = np.square(found - wanted).sum()
    assert noise <= 1e-10 * np.square(wanted).sum()
