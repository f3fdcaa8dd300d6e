"""The engine scores itself: the figure, its interval, every sample's record."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.unit.studies import write_model

from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.core.errors import BadData, BadSettings
from ortune.metrics.cosine import Cosine

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3] x) => (float[N,3] y) { y = Identity(x) }
"""
ROUGH = MODEL.replace("y = Identity(x)", "y = Round(x)")
ROWS = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0]] + np.float32(0.1)
RIGHT = [0, 1, 2, 0, 1, 2, 0, 1, 2, 1]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with load_engine(write_model(tmp_path / "toy.onnx", MODEL)) as opened:
        yield opened


def test_top1_is_exact(engine: Engine, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=ROWS)
    found = engine.evaluate(tmp_path / "s.npz", RIGHT)
    assert (found.metric, found.value, found.samples, found.unit) == ("top1", 0.9, 10, "sample")
    assert found.records == (1.0,) * 9 + (0.0,)
    # Clopper and Pearson for 9 of 10 at 95 %.
    assert found.low == pytest.approx(0.5550, abs=1e-4)
    assert found.high == pytest.approx(0.9975, abs=1e-4)
    assert "value" in repr(found) and "records" not in repr(found)


@pytest.mark.parametrize(("labels", "low", "high"), [(0, 0.0, 0.3085), (1, 0.6915, 1.0)])
def test_all_wrong_and_all_right(engine: Engine, labels: int, low: float, high: float) -> None:
    given = np.argmax(ROWS, 1) if labels else (np.argmax(ROWS, 1) + 1) % 3
    found = engine.evaluate({"x": ROWS}, given.tolist())
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_samples_may_be_dicts_functions_and_folders(engine: Engine, tmp_path: Path) -> None:
    blocks = [{"x": row[None], "label": [label]} for row, label in zip(ROWS, RIGHT, strict=True)]
    folder = tmp_path / "samples"
    folder.mkdir()
    for place, block in enumerate(blocks):
        np.savez(folder / f"{place}.npz", **block)
    for samples in (blocks, iter(blocks), lambda: iter(blocks), folder, str(folder)):
        assert engine.evaluate(samples).value == 0.9


def test_groups_count_once(engine: Engine) -> None:
    blocks = [
        {"x": row[None], "label": [label], "group": str(place // 5)}
        for place, (row, label) in enumerate(zip(ROWS, RIGHT, strict=True))
    ]
    found = engine.evaluate(blocks)
    assert found.unit == "group" and found.value == 0.9
    assert found.low <= 0.9 <= found.high


def test_a_metric_of_fidelity_needs_a_reference(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="compares with the answers"):
        engine.evaluate({"x": ROWS}, metric="cosine")
    with load_engine(write_model(tmp_path / "rough.onnx", ROUGH)) as rough:
        found = rough.evaluate({"x": ROWS}, metric=Cosine(), reference=engine)
        assert 0.9 < found.low <= found.value <= found.high <= 1
        assert rough.evaluate({"x": ROWS}, reference=engine).metric.startswith("agreement")


def test_what_cannot_be_scored(engine: Engine) -> None:
    with pytest.raises(BadData, match="top1 needs labels"):
        engine.evaluate({"x": ROWS})
    with pytest.raises(BadData, match="wrong number of labels"):
        engine.evaluate({"x": ROWS}, [1, 2])
    with pytest.raises(BadData, match="no input 'z'"):
        engine.evaluate({"z": ROWS}, RIGHT)
    with pytest.raises(BadData, match="no samples"):
        engine.evaluate([])
