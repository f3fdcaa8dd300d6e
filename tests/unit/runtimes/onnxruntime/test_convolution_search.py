"""How cuDNN searches follows from how many shapes there are."""

from __future__ import annotations

import pytest

from ortune.runtimes.onnxruntime.convolution_search import FEW, searches


@pytest.mark.parametrize(
    ("shapes", "best"),
    [(1, "exhaustive"), (2, "exhaustive"), (FEW, "exhaustive"), (FEW + 1, "heuristic")],
)
def test_the_first_bet(shapes: int, best: str) -> None:
    assert searches(shapes)[0] == best


def test_shapes_that_nobody_counted_may_be_many() -> None:
    assert searches(None) == searches(1000)
    assert "exhaustive" not in searches(None)


def test_one_shape_needs_no_second_try() -> None:
    assert searches(1) == ("exhaustive",)
