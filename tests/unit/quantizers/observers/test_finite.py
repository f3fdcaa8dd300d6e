"""Observers of what 16-bit formats have to hold: extents without masks, magnitudes, inner sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ortune.core.observer import Range
from ortune.quantizers.observers.finite import Finite
from ortune.quantizers.observers.magnitude import Magnitude
from ortune.quantizers.observers.sums import Sums

LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("mask", [-np.inf, np.inf, np.nan])
def test_masks_are_left_out(mask: float, dtype: type) -> None:
    watch = Finite().start()
    watch.update(0, np.array([[mask, -2, 3]], dtype))
    watch.update(0, np.array([mask], dtype))
    watch.update(0, np.zeros((0, 3), dtype))
    assert watch.result() == Range(-2, 3)


def test_what_stands_for_infinity_is_left_out_and_what_is_large_is_not() -> None:
    watch = Finite().start()
    watch.update(0, np.array([LOWEST, 1e29, -5], np.float32))
    assert watch.result() == Range(-5, pytest.approx(1e29))
    strict = Finite(mask=1e20).start()
    strict.update(0, np.array([LOWEST, 1e29, -5], np.float32))
    assert strict.result() == Range(-5, -5)


def test_the_smallest_magnitude_that_is_not_zero() -> None:
    watch = Magnitude().start()
    watch.update(0, np.array([0, -3, np.inf, np.nan], np.float32))
    watch.update(0, np.array([1e-9, 2], np.float32))
    assert watch.result() == Range(pytest.approx(1e-9), 3)


def test_a_sum_bounds_every_partial_sum() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 50)).astype(np.float32)
    watch = Sums(axes=(-1,)).start()
    watch.update(0, values)
    partial = np.abs(np.cumsum(values, axis=-1)).max()
    assert partial < watch.result().high == pytest.approx(np.abs(values).sum(-1).max())


def test_sums_of_squares_over_several_axes_and_over_all() -> None:
    values = np.array([[[1, -2], [3, 4]], [[0, 5], [0, 0]]], np.float32)
    for axes, expected in (((1, 2), 30.0), ((), 55.0), ((0,), 29.0)):
        watch = Sums(axes=axes, power=2).start()
        watch.update(0, values)
        watch.update(0, np.zeros((0, 2, 2), np.float32))
        assert watch.result() == Range(0, expected)


def test_infinite_sums_are_left_out() -> None:
    watch = Sums(axes=(1,)).start()
    watch.update(0, np.array([[-np.inf, 1], [2, -3]], np.float32))
    assert watch.result() == Range(0, 5)


@pytest.mark.parametrize("observer", [Finite(), Magnitude(), Sums()])
def test_nothing_seen(observer: Finite | Magnitude | Sums) -> None:
    assert observer.start().result() == Range(0, 0)
