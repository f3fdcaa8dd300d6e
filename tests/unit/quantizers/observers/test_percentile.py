"""Close to the exact percentile, whatever the batches, in constant memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.core.errors import BadSettings
from ortune.core.observer import Range
from ortune.measurement.statistics.histogram import MOST, Histogram
from ortune.quantizers.observers.percentile import BINS, Percentile


def observe(p: float, batches: list[np.ndarray]) -> Range:
    watch = Percentile(p).start()
    for turn in range(Percentile.passes):
        for batch in batches:
            watch.update(turn, batch)
    return watch.result()


@given(st.integers(0, 1000), st.floats(90, 100))
def test_is_within_a_bin_of_the_exact_percentile(seed: int, p: float) -> None:
    random = np.random.default_rng(seed)
    values = (random.standard_t(3, 5000) * random.uniform(0.01, 100)).astype(np.float32)
    cuts = np.split(values, sorted(random.integers(0, values.size, 3)))
    found = observe(p, [cut.reshape(1, -1) for cut in cuts])
    tail = (100 - p) / 2
    # A tail of less than one sample may lie anywhere between the two outermost values.
    for value, side in ((found.low, tail), (found.high, 100 - tail)):
        lower = np.percentile(values, side, method="lower")
        higher = np.percentile(values, side, method="higher")
        width = np.ptp(values) / BINS
        assert lower - 1.01 * width <= value <= higher + 1.01 * width


@pytest.mark.parametrize("p", [0, -1, 100.5, float("nan")])
def test_wrong_share(p: float) -> None:
    with pytest.raises(BadSettings):
        Percentile(p)


@pytest.mark.parametrize("observer", [Percentile(99.9), Percentile(99.9, symmetric=True)])
def test_of_a_large_run_evenly_spread_values_are_counted(observer: Percentile) -> None:
    values = np.random.default_rng(0).normal(size=(4, 16, 160, 320)).astype(np.float32)
    assert values.size > 6 * MOST
    watch = observer.start()
    for turn in range(2):
        watch.update(turn, values)
    found, exact = watch.result(), np.percentile(values, [0.05, 99.95])
    assert [found.low, found.high] == pytest.approx(list(exact), abs=0.06)
    assert isinstance(watch, Histogram)
    assert watch.range == Range(float(values.min()), float(values.max())), "of all values"
    assert watch.counts.sum() == pytest.approx(values.size, rel=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_no_place_in_a_large_run_is_passed_over(axis: int) -> None:
    shape = (2, 32, 200, 256)
    values = np.moveaxis(
        np.broadcast_to(np.arange(shape[axis]), [*np.delete(shape, axis), shape[axis]]), -1, axis
    )
    watch = Percentile(100).start()
    for turn in range(2):
        watch.update(turn, values.astype(np.float32))
    assert isinstance(watch, Histogram)
    taken = watch.counts[watch.counts > 0]
    assert taken.size == shape[axis]
    assert taken == pytest.approx(np.full(shape[axis], values.size / shape[axis]), rel=0.01)


def test_runs_weigh_by_their_values_however_many_were_counted() -> None:
    large, small = np.full(8 * MOST, 1.0, np.float32), np.full(MOST, 2.0, np.float32)
    watch = Percentile(100).start()
    for turn in range(2):
        for values in (np.zeros(3, np.float32), large, small):
            watch.update(turn, values)
    assert isinstance(watch, Histogram)
    assert watch.zeros == 3
    assert sorted(watch.counts[watch.counts > 0]) == pytest.approx([3, MOST, 8 * MOST], rel=1e-4)
