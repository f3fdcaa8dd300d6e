"""The arithmetic of integer grids."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.unit.quantizing import model_of, run

from ortune.core.observer import Range
from ortune.quantizers.common import grid as grids

BOUND = st.floats(-1000, 1000, width=32)
KINDS = st.sampled_from(["u8", "s8"])
WEIGHTS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=6),
    elements=st.floats(-100, 100, width=32),
)


@given(BOUND, BOUND, KINDS, st.booleans(), st.integers(0, 100))
def test_round_trip_is_within_half_a_step(
    one: float, two: float, kind: grids.Kind, symmetric: bool, seed: int
) -> None:
    seen = Range(min(one, two), max(one, two))
    assume(grids.can_cover(seen))
    grid = grids.make_activation_grid(seen, kind, symmetric=symmetric)
    values = np.random.default_rng(seed).uniform(seen.low, seen.high, 50).astype(np.float32)
    back = grid.dequantize(grid.quantize(values))
    # Half a step, and another half where the rounded zero point shifts the ends of the range.
    inside = np.abs(back - values) <= grid.scale * 0.5 * (1 + 1e-5) + 1e-6
    ends = grid.quantize(values)
    limits = np.iinfo(ends.dtype)
    assert np.all(inside | (ends == limits.min) | (ends == limits.max))
    assert np.all(np.abs(back - values) <= grid.scale * (1 + 1e-5) + 1e-6)


@given(BOUND, BOUND, KINDS, st.booleans())
def test_zero_is_exact(one: float, two: float, kind: grids.Kind, symmetric: bool) -> None:
    grid = grids.make_activation_grid(
        Range(min(one, two), max(one, two)), kind, symmetric=symmetric
    )
    zero = np.zeros(3, np.float32)
    assert np.array_equal(grid.dequantize(grid.quantize(zero)), zero)


@given(st.floats(2.0**-10, 1000, width=32))
def test_a_grid_from_zero_never_ends_beyond_the_range(high: float) -> None:
    grid = grids.make_activation_grid(Range(0, high), "u8")
    assert grid.zero == 0
    assert np.float32(255) * grid.scale <= np.float32(high)


@given(WEIGHTS, st.booleans(), KINDS, st.data())
def test_weights_lose_half_a_step_a_channel(
    values: np.ndarray, reduce_range: bool, kind: grids.Kind, data: st.DataObject
) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(0, values.ndim - 1)))
    grid = grids.make_weight_grid(values, axis, kind, reduce_range=reduce_range)
    integers = grid.quantize(values)
    step = grid._align_to_axis(grid.scale, values.ndim)
    assert np.all(np.abs(grid.dequantize(integers) - values) <= step * 0.5 * (1 + 1e-4))
    reach = 64 if reduce_range else 127
    assert np.abs(integers.astype(int) - grid.zero.flat[0].astype(int)).max() <= reach


def test_blocks_of_rows_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(7, 5, 3)).astype(np.float32)
    for axis in (0, 1, 2, None):
        grid = grids.make_weight_grid(values, axis)
        whole = grid.quantize(values)
        monkeypatch.setattr(grids, "BLOCK", 20)
        assert np.array_equal(grid.quantize(values), whole)
        monkeypatch.undo()


def test_a_channel_of_zeros_stays_zero() -> None:
    values = np.array([[1.0, 2.0], [0.0, 0.0]], np.float32)
    grid = grids.make_weight_grid(values, 0)
    integers = grid.quantize(values)
    assert np.array_equal(integers[1], [0, 0])
    assert grid.scale[1] > 0


@given(
    hnp.arrays(np.float32, 4, elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(2.0**-20, 1.0, width=32),
)
def test_bias_fits_int32_and_keeps_its_value(values: np.ndarray, x_scale: float) -> None:
    weight = grids.Grid(np.full(4, 1e-9, np.float32), np.zeros(4, np.int8), 0)
    integers, scale, wide = grids.quantize_bias(values, np.float32(x_scale), weight)
    assert integers.dtype == np.int32
    assert np.all(wide.scale >= weight.scale)
    back = integers.astype(np.float64) * scale
    assert np.all(np.abs(back - values) <= scale + 1e-6 * np.abs(values))


def test_agrees_with_quantize_linear() -> None:
    grid = grids.make_activation_grid(Range(-1.3, 2.7), "u8")
    values = np.linspace(-2, 3, 1001).astype(np.float32)
    model = model_of(
        "g (float[n] x) => (uint8[n] y) { y = QuantizeLinear(x, s, z) }",
        {"s": grid.scale, "z": grid.zero},
    )
    assert np.array_equal(run(model, {"x": values})[0], grid.quantize(values))


@pytest.mark.parametrize("seen", [Range(0, 0), Range(-1e-20, 1e-20)])
def test_ranges_without_a_grid(seen: Range) -> None:
    assert not grids.can_cover(seen)
