"""Attention is found in today's exports, and answers stay, padding and nothing but padding too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from ortune.graph.io import file
from ortune.transforms.fuse_attention import FuseAttention
from ortune.transforms.raise_opset import RaiseOpset
from ortune.transforms.simplify import Simplify
from tests.real.samples import sample, written

Feeds = dict[str, NDArray[np.int64]]


def answer(path: Path, feeds: Feeds) -> NDArray[np.float64]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0], np.float64)


def padded(batch: int, length: int, kept: int) -> Feeds:
    """Return tokens of which the last ones of the first row, or all, are padding."""
    ids = np.random.default_rng(length).integers(1000, 30000, (batch, length))
    mask = np.ones_like(ids)
    mask[0, kept:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@pytest.fixture(scope="module")
def minilm() -> Path:
    if missing := sample("minilm").missing():
        pytest.skip(missing)
    return written("minilm") / "model.onnx"


def test_six_layers_of_minilm(minilm: Path, tmp_path: Path) -> None:
    model = file.load(minilm)
    for step in (Simplify(), RaiseOpset(to=FuseAttention.needs_opset)):
        step.apply(model)
    assert FuseAttention().apply(model) == 6
    assert not {"Softmax", "Transpose"} & {node.op_type for node in model.graph}
    path = file.save(model, tmp_path / "fused.onnx")
    for feeds in (padded(1, 33, 33), padded(2, 9, 4), padded(3, 1, 1), padded(2, 7, 0)):
        wanted, found = answer(minilm, feeds), answer(path, feeds)
        noise = np.square(found - wanted).sum()
        assert 10 * np.log10(np.square(wanted).sum() / max(noise, 1e-30)) >= 100
