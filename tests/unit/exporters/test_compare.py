"""What counts as the same answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortune.exporters.export import FLOAT32, SHORT, difference, tolerance

ONE = {"y": np.array([1.0, -4.0], np.float32), "ids": np.array([1, 2])}


def test_the_error_is_a_share_of_the_largest_value() -> None:
    found = {**ONE, "y": np.array([1.0, -4.004], np.float32)}
    error, what = difference(ONE, found)
    assert error == pytest.approx(1e-3, rel=1e-3)
    assert "'y'" in what
    assert difference(ONE, ONE)[0] == 0


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"ids": ONE["ids"]}, "missing"),
        ({**ONE, "y": np.ones((1, 2), np.float32)}, "shape"),
        ({**ONE, "y": ONE["y"].astype(np.float64)}, "float64"),
        ({**ONE, "y": np.array([np.nan, -4], np.float32)}, "finite"),
        ({**ONE, "ids": np.array([1, 3])}, "1 of 2"),
    ],
)
def test_what_cannot_be_rounding_is_infinite(found: dict[str, np.ndarray], said: str) -> None:
    error, what = difference(ONE, found)
    assert math.isinf(error)
    assert said in what


def test_nan_and_infinity_at_the_same_place_are_the_same() -> None:
    one = {"y": np.array([np.nan, np.inf, 1], np.float32)}
    assert difference(one, one)[0] == 0
    other = {"y": np.array([np.nan, -np.inf, 1], np.float32)}
    assert math.isinf(difference(one, other)[0])


def test_16_bit_outputs_may_differ_by_more() -> None:
    assert tolerance(ONE) == FLOAT32
    assert tolerance({"y": np.ones(2, np.float16)}) == SHORT
