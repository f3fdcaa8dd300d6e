"""Models of single operators: each command is right or refuses in two lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy import operator_cases
from benchmarks.accuracy.operators import GOOD, compare_outputs, examine_cases, summarize_rows

ONE = np.array([1.0, 2.0, -3.0], np.float32)


def test_some_operators_of_every_kind() -> None:
    """The whole is `python -m benchmarks.accuracy.operators`."""
    text = "(float[1,2,3,3] x) => (float[1,2,3,3] y) { y = MeanVarianceNormalization(x) }"
    mixed = operator_cases.make_case("a body of mixed types in float16", text, opset=9)
    recipes = operator_cases.read_recipes()
    product = operator_cases.hold_weights(recipes[0])
    assert product is not None
    rows = examine_cases([product, mixed, *recipes[1::120]])
    assert all(end.startswith(GOOD) for row in rows for end in row["ends"].values()), rows
    counts = summarize_rows(rows)["counts"]["operators"]
    assert counts["simplify"]["right"] >= 3 and counts["int8"]["right"] >= 1


@pytest.mark.parametrize(
    "other",
    [
        np.float64(ONE),
        ONE[:2],
        np.array([1.0, np.nan, -3.0], np.float32),
        np.array([1.0, np.inf, -3.0], np.float32),
        ONE + 0.1,
        [ONE],
        None,
    ],
    ids=str,
)
def test_what_differs_is_seen(other: Any) -> None:
    assert compare_outputs([ONE], [ONE], 0.01, []) is None
    assert compare_outputs([ONE], [other], 0.01, []) is not None


def test_rounded_inputs_explain_as_much_as_they_move() -> None:
    assert compare_outputs([ONE], [ONE + 0.1], 0.01, [[ONE - 0.05]]) is None
    assert compare_outputs([ONE], [ONE + 0.1], 0.01, [[ONE - 0.01]]) is not None
    chosen = np.array([1])
    assert compare_outputs([chosen], [chosen + 1], 0.01, []) is not None
    assert compare_outputs([chosen], [chosen + 1], 0.01, [[chosen + 2]]) is None
