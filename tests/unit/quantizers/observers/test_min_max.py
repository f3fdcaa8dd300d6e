"""The whole extent, in constant memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortune.core.errors import BadData
from ortune.core.observer import Range
from ortune.quantizers.observers.min_max import MinMax

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(hnp.arrays(np.float32, hnp.array_shapes(min_side=0), elements=FINITE)))
def test_equals_the_extent_of_everything(batches: list[np.ndarray]) -> None:
    watch = MinMax().start()
    for batch in batches:
        watch.update(0, batch)
    values = np.concatenate([batch.ravel() for batch in batches]) if batches else np.zeros(0)
    expected = Range(float(values.min()), float(values.max())) if values.size else Range(0, 0)
    assert watch.result() == expected


@pytest.mark.parametrize(
    ("bad", "said"), [(np.nan, "1 NaN of 6"), (np.inf, "1 infinite of 6"), (-np.inf, "infinite")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_non_finite_values_are_named(bad: float, said: str, dtype: type) -> None:
    values = np.ones((2, 3), dtype)
    values[1, 2] = bad
    with pytest.raises(BadData, match=said):
        MinMax().start().update(0, values)
