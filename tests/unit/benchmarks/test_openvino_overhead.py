"""The overhead over OpenVINO's own API: its summary, and that both sides compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.speed import openvino_overhead as overhead

from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.openvino import native


def rounds(ratio: float, noise: float = 0.01) -> list[list[tuple[float, float]]]:
    rng = np.random.default_rng(1)
    return [
        [(1e6, 1e6 * ratio * float(rng.normal(1, noise))) for _ in range(50)] for _ in range(8)
    ]


def test_the_ratio_lies_in_its_interval() -> None:
    found = overhead.summary(rounds(1.01))
    ratio = found["ratio"]
    assert ratio["low"] < 1.01 < ratio["high"]
    assert ratio["high"] - ratio["low"] < 0.01
    assert found["within"] is True
    assert (found["rounds"], found["turns"]) == (8, 400)


def test_what_costs_more_is_not_within() -> None:
    assert overhead.summary(rounds(1.05))["within"] is False


def test_rounds_that_differ_widen_it() -> None:
    """A few lucky places in memory are no proof."""
    lucky = [*rounds(1.0, 0.001)[:4], *rounds(1.05, 0.001)[:4]]
    assert overhead.summary(lucky)["within"] is False


def test_the_properties_are_those_of_the_plan() -> None:
    assert Openvino(threads=1).build_properties() == overhead.PROPERTIES
    assert str(Openvino(threads=1)) == overhead.PLAN


@pytest.mark.skipif(not native.is_openvino_installed(), reason="needs openvino")
def test_both_sides_of_a_round_answer_alike(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,64] x) => (float[1,64] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    feeds = {"x": np.linspace(-1, 1, 64, dtype=np.float32)[None]}
    for number, shared in ((0, False), (1, True)):
        turns = overhead.taken(path, feeds, number, shared, seconds=0.02)
        assert len(turns) >= 4
        assert all(min(pair) > 0 for pair in turns)
    with pytest.raises(AssertionError):
        overhead.agree(overhead.request(path, feeds, False)(), {"y": -feeds["x"]})
