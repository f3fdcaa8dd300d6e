"""Padding of a real encoder on real texts: without effect, and most of the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.speed.buckets import padded

import ortune as ot
from ortune.analysis.padding.buckets import buckets
from tests.real.samples import sample, written

WIDTH = 128


@pytest.mark.long
def test_minilm_on_padded_film_reviews(tmp_path: Path) -> None:
    if missing := sample("minilm").missing():
        pytest.skip(missing)
    folder = written("minilm")
    model, data = folder / "model.onnx", padded(folder / "data", tmp_path / "padded", WIDTH)
    found = buckets(model, data=data, on="cpu(threads=1)", seconds=0)
    assert found.backend.outputs == ("last_hidden_state",)
    assert found.backend.inputs == ("input_ids", "token_type_ids")
    assert found.least <= found.positions < 0.4
    files = sorted(data.glob("*.npz"))[:4]
    rows = [dict(np.load(path)) for path in files]
    batch = {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
    with ot.load(model, on="cpu(threads=1)") as plain, ot.load(model, on=found.backend) as cut:
        for feeds in (*rows, batch):
            real = feeds["attention_mask"] == 1
            one, two = (e(**feeds)["last_hidden_state"] for e in (plain, cut))
            assert one.shape == two.shape
            np.testing.assert_allclose(two[real], one[real], atol=1e-4)
            assert not two[:, found.backend.choose_bucket(feeds) :].any()
