"""Classes are written as Triton writes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortune.serving.protocol.datatypes import classify
from ortune.serving.protocol.status import RequestRefused


def test_the_highest_of_each_row() -> None:
    scores = np.array([[0.1, 3.25, -1], [1, 0, 2]], np.float32)
    assert classify(scores, 2).tolist() == [
        [b"3.250000:1", b"0.100000:0"],
        [b"2.000000:2", b"1.000000:0"],
    ]


def test_more_classes_than_there_are() -> None:
    assert classify(np.zeros((2, 3), np.float32), 9).shape == (2, 3)


def test_equal_scores_in_order_and_nan_last() -> None:
    odd = np.array([[np.nan, 1, 1, np.inf, -np.inf]])
    indices = [text.split(b":")[1] for text in classify(odd, 5)[0]]
    assert indices[:3] == [b"3", b"1", b"2"] and set(indices[3:]) == {b"0", b"4"}


@pytest.mark.parametrize("kind", ["u1", "u8", "i1", "i8"])
def test_the_ends_of_integers(kind: str) -> None:
    ends = np.iinfo(kind)
    found = classify(np.array([[ends.min, ends.max]], kind), 2)[0].tolist()
    assert found == [f"{ends.max}:1".encode(), f"{ends.min}:0".encode()]


@pytest.mark.parametrize("kind", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats(kind: Any) -> None:
    assert classify(np.array([[0.5, 2]], kind), 1).tolist() == [[b"2.000000:1"]]


def test_shapes() -> None:
    assert classify(np.zeros((2, 2, 3), np.float32), 4).shape == (2, 4)
    assert classify(np.zeros((2, 3), np.float32), 4, batched=False).shape == (4,)
    assert classify(np.zeros((0, 3), np.float32), 4).shape == (0, 3)
    assert classify(np.array(2.5), 4).tolist() == [b"2.500000:0"]


def test_text_has_no_scores() -> None:
    with pytest.raises(RequestRefused, match="unsupported type 'BYTES'"):
        classify(np.array([["a"]], object), 1)
