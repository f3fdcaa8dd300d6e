"""Every observer's range on known distributions, and the same check failing a broken twin."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.quantization.calibrate import HistogramCollector

from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Observer, Range
from ortune.core.plugins import spelling
from ortune.quantizers.observers.activity import Activity
from ortune.quantizers.observers.channels import Channels
from ortune.quantizers.observers.entropy import Entropy
from ortune.quantizers.observers.finite import Finite
from ortune.quantizers.observers.magnitude import Magnitude
from ortune.quantizers.observers.min_max import MinMax
from ortune.quantizers.observers.moments import LayerMoments
from ortune.quantizers.observers.mse import Mse
from ortune.quantizers.observers.percentile import Percentile
from ortune.quantizers.observers.sums import Sums

COUNT = 6_000
_RANDOM = np.random.default_rng(0)
DATA = {
    "uniform": _RANDOM.uniform(-3, 5, COUNT),
    "normal with outliers": np.append(_RANDOM.normal(size=COUNT), [9.0, -5.0, 7.0]),
    "behind a Relu": np.maximum(_RANDOM.normal(-0.5, 1, COUNT), 0),
    "all negative": -_RANDOM.exponential(size=COUNT) - 0.5,
    "constant": np.full(100, 2.5),
    "all zero": np.zeros(100),
}
Check = Callable[[Range, np.ndarray], bool]


def seen(observer: Observer, values: np.ndarray) -> Range:
    """Observe in ragged runs."""
    watch = observer.start()
    for turn in range(observer.passes):
        for part in np.array_split(values.astype(np.float32), 7):
            watch.update(turn, part.reshape(-1, 1))
    return watch.result()


def whole(found: Range, values: np.ndarray) -> bool:
    """Exactly the extent."""
    single = values.astype(np.float32)
    return (found.low, found.high) == (single.min(), single.max())


def around(found: Range, values: np.ndarray) -> bool:
    """Exactly the largest magnitude, on both sides."""
    top = np.abs(values.astype(np.float32)).max()
    return (found.low, found.high) == (-top, top)


def magnitudes(found: Range, values: np.ndarray) -> bool:
    """Exactly the smallest magnitude that is not zero, and the largest."""
    sizes = np.abs(values[values != 0].astype(np.float32))
    ends = (sizes.min(), sizes.max()) if sizes.size else (0, 0)
    return (found.low, found.high) == ends


def sums(found: Range, values: np.ndarray) -> bool:
    """The largest sum of magnitudes of a run."""
    most = max(float(np.abs(part).sum()) for part in np.array_split(values, 7))
    return found.low == 0 and bool(np.isclose(found.high, most))


def averaged(found: Range, values: np.ndarray) -> bool:
    """The recurrence that the field's text gives."""
    low = high = None
    for part in np.array_split(values.astype(np.float32), 7):
        low = part.min() if low is None else low + 0.3 * (part.min() - low)
        high = part.max() if high is None else high + 0.3 * (part.max() - high)
    return np.allclose((found.low, found.high), (low, high), rtol=1e-5)


def within_a_bin(found: Range, values: np.ndarray) -> bool:
    """The exact percentiles, to one bin or one value."""
    width = np.ptp(values) / 2048 * 1.01
    ends = []
    for value, side in ((found.low, 0.5), (found.high, 99.5)):
        lower, higher = (np.percentile(values, side, method=m) for m in ("lower", "higher"))
        ends.append(lower - width <= value <= higher + width)
    return all(ends)


def magnitude_within_a_bin(found: Range, values: np.ndarray) -> bool:
    """The exact percentile of the magnitudes, to one bin or one value."""
    width = max(np.ptp(values), np.abs(values).max()) / 2047 * 1.01
    lower, higher = (np.percentile(np.abs(values), 99, method=m) for m in ("lower", "higher"))
    return found.low == -found.high and lower - width <= found.high <= higher + width


def squared_error(found: Range, values: np.ndarray, *, symmetric: bool) -> float:
    """Round the values themselves to the grid of 8 bits; their mean squared error."""
    low, high = min(found.low, 0.0), max(found.high, 0.0)
    steps = 254 if symmetric else 255
    step = (high - low) / steps
    if not step:
        return float(np.mean(values**2))
    zero = np.rint(-low / step)
    held = (np.clip(np.rint(values / step) + zero, 0, steps) - zero) * step
    return float(np.mean((held - values) ** 2))


def least_error(found: Range, values: np.ndarray) -> bool:
    """At most 2 % above the best of many ranges that are tried one by one."""
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    parts = np.linspace(0.04, 1, 25)
    lows = low * parts if low else [0.0]
    highs = high * parts if high else [0.0]
    tried = [squared_error(Range(a, b), values, symmetric=False) for a in lows for b in highs]
    return squared_error(found, values, symmetric=False) <= 1.02 * min(tried)


def least_symmetric_error(found: Range, values: np.ndarray) -> bool:
    """As `least_error`, around zero."""
    top = np.abs(values).max()
    tried = [
        squared_error(Range(-top * part, top * part), values, symmetric=True)
        for part in np.linspace(0.01, 1, 100)
    ]
    error = squared_error(found, values, symmetric=True)
    return found.low == -found.high and error <= 1.02 * min(tried)


def least_error_by_sign(found: Range, values: np.ndarray) -> bool:
    """As `least_error` where nothing is negative, else as `least_symmetric_error`."""
    return (least_symmetric_error if values.min() < 0 else least_error)(found, values)


def within_a_bin_by_sign(found: Range, values: np.ndarray) -> bool:
    """As `within_a_bin` where nothing is negative, else as `magnitude_within_a_bin`."""
    return (magnitude_within_a_bin if values.min() < 0 else within_a_bin)(found, values)


def information_lost(
    found: Range, values: np.ndarray, levels: int, bins: int, *, symmetric: bool
) -> float:
    """Return the divergence of a threshold, by its definition and part by part."""
    values = values[values != 0]
    width = (max(values.max(), 0) - min(values.min(), 0)) / (bins - 1)
    if symmetric:
        values, levels = np.abs(values), levels // 2
        found = Range(0.0, found.high)
    places = np.floor(values / width).astype(int)
    start, end = round(found.low / width - 0.499), round(found.high / width + 0.499)
    start, end = min(start, 0), max(end, 0)
    inside = np.array([np.sum(places == place) for place in range(start, end)])
    given = inside.copy()
    given[0] += np.sum(places < start)
    given[-1] += np.sum(places >= end)
    # Every bin in as many parts as there are levels: then a level is a whole number of parts.
    parts = np.repeat(inside / levels, levels).reshape(levels, -1)
    filled = np.repeat(given > 0, levels).reshape(levels, -1)
    each = parts.sum(axis=1) / np.maximum(filled.sum(axis=1), 1)
    held = np.where(filled, each[:, None], 0).reshape(-1, levels).sum(axis=1)
    p, q = given[given > 0] / len(values), np.maximum(held[given > 0], 1e-4) / len(values)
    return float(np.sum(p * np.log(p / q) - p + q))


def least_information(found: Range, values: np.ndarray) -> bool:
    """At most 1 % above the best of all thresholds, tried one by one."""
    return _least(found, values, symmetric=False)


def least_symmetric_information(found: Range, values: np.ndarray) -> bool:
    """As `least_information`, of magnitudes."""
    return found.low == -found.high and _least(found, values, symmetric=True)


def _least(found: Range, values: np.ndarray, *, symmetric: bool) -> bool:
    if not values.any() or not np.ptp(values):
        return around(found, values) if symmetric else whole(found, values)
    top = np.abs(values).max()
    tried = []
    width = (max(values.max(), 0) - min(values.min(), 0)) / 64
    for bins in range(8 if symmetric else 16, round(top / width) + 1):
        reach = min(bins * width, top)
        cut = Range(max(values.min(), -reach), min(values.max(), reach))
        cut = Range(-reach, reach) if symmetric else cut
        tried.append(information_lost(cut, values, 16, 65, symmetric=symmetric))
    lost = information_lost(found, values, 16, 65, symmetric=symmetric)
    return lost <= 1.01 * min(tried) + 1e-6


@dataclass(frozen=True)
class Case:
    observer: Observer
    check: Check


CASES = [
    Case(MinMax(), whole),
    Case(Channels(), whole),
    Case(Activity(), whole),
    Case(Finite(), whole),
    Case(Magnitude(), magnitudes),
    Case(Sums(), sums),
    Case(MinMax(symmetric=True), around),
    Case(MinMax(average=0.3), averaged),
    Case(Percentile(99), within_a_bin),
    Case(Percentile(99, symmetric=True), magnitude_within_a_bin),
    Case(Mse(), least_error),
    Case(Mse(symmetric=True), least_symmetric_error),
    Case(Mse(by_sign=True), least_error_by_sign),
    Case(Percentile(99, by_sign=True), within_a_bin_by_sign),
    Case(Entropy(bits=4, bins=65), least_information),
    Case(Entropy(bits=4, bins=65, symmetric=True), least_symmetric_information),
]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.observer))
def test_range_is_the_one_defined_and_a_broken_one_is_caught(case: Case, name: str) -> None:
    values = DATA[name]
    found = seen(case.observer, values)
    assert case.check(found, values)
    if not values.any():
        assert (found.low, found.high) == (0, 0)
        assert not case.check(Range(-1, 1), values) or case.check in (
            least_error,
            least_symmetric_error,
            least_error_by_sign,
        )
        return
    halved = Range(found.low / 2, found.high / 2)
    other = seen(case.observer, DATA["uniform" if name == "all negative" else "all negative"])
    quarters = np.percentile(values, [25, 75])
    clipped = Range(min(quarters[0], 0.0), max(quarters[1], 0.0))
    for broken in (halved, other, *([clipped] if np.ptp(values) else [])):
        assert not case.check(broken, values), broken


@pytest.mark.parametrize("kind", ["normal", "laplace", "uniform"])
def test_entropy_beside_onnxruntime(kind: str) -> None:
    """Same idea; onnxruntime rounds its levels' counts down, and cuts a uniform distribution.

    The thresholds of a normal distribution agree to 8 %; where they differ, ours loses no more.
    """
    bins, levels = 301, 64
    values = getattr(np.random.default_rng(1), kind)(size=40_000).astype(np.float32)
    values = values * 2 - 1 if kind == "uniform" else values
    top = float(np.abs(values).max())
    counts, edges = np.histogram(values, bins, (-top, top))
    peer = HistogramCollector("entropy", False, bins, levels, 99.9, "same")
    histogram = (counts, edges.astype(np.float32), values.min(), values.max(), np.float32(top))
    low, high = peer.get_entropy_threshold(histogram, levels)
    theirs, ours = Range(float(low), float(high)), seen(Entropy(bits=6, bins=bins), values)
    if kind == "normal":
        assert ours.high == pytest.approx(theirs.high, rel=0.08)
    lost = [information_lost(r, values, levels, bins, symmetric=False) for r in (ours, theirs)]
    assert lost[0] <= lost[1] * 1.01
    if kind == "uniform":
        assert theirs.high < 0.9 < ours.high


def test_channels_apart_and_what_changes() -> None:
    values = np.zeros((2, 3, 4, 5), np.float32)
    values[:, 1] = np.linspace(-1, 2, 40).reshape(2, 4, 5)
    watch = Activity(axis=1).start()
    watch.update(0, values)
    assert watch.result().channels == ((0, 0), (-1, 2), (0, 0))
    watch.update(0, np.ones((1, 4, 2, 2), np.float32))
    assert watch.result() == Range(-1, 2)
    single = Activity(axis=1).start()
    single.update(0, np.arange(3.0))
    assert single.result() == Range(0, 2)


@pytest.mark.parametrize(
    "observer",
    [Entropy(), Mse(), Activity(), Channels(), Percentile(), MinMax(average=0.5)],
    ids=str,
)
def test_nan_and_nothing(observer: Observer) -> None:
    with pytest.raises(BadData, match="NaN"):
        observer.start().update(0, np.array([1, np.nan], np.float32))
    watch = observer.start()
    for turn in range(observer.passes):
        watch.update(turn, np.zeros((0, 3), np.float32))
    assert watch.result() == Range(0, 0)


@pytest.mark.parametrize(
    "observer",
    [Entropy(), Mse(), Percentile(), MinMax(), MinMax(average=0.1), Activity(), LayerMoments()],
    ids=str,
)
def test_state_does_not_grow(observer: Observer) -> None:
    watch = observer.start()
    sizes = []
    for count in (1, 10, 10_000):
        for turn in range(observer.passes):
            watch.update(turn, np.random.default_rng(count).normal(size=(count, 4)))
        sizes.append(len(pickle.dumps(watch)))
    assert max(sizes) <= sizes[0] + 64
    assert sizes[0] <= observer.state_bytes((1, 4)) + 4096


@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1e20, 3e38])
@pytest.mark.parametrize("observer", [Percentile(100), Entropy(), Mse()])
def test_extreme_magnitudes(observer: Observer, scale: float) -> None:
    values = (np.linspace(-1, 1, 5000) * scale).astype(np.float32)
    found = seen(observer, values)
    assert values.min() <= found.low <= 0.9 * values.min()
    assert 0.9 * values.max() <= found.high <= values.max()


def test_values_far_from_zero_keep_their_bins() -> None:
    values = 1e6 + np.arange(1000, dtype=np.float64) / 8
    found = seen(Percentile(90), values)
    assert found.low == pytest.approx(np.percentile(values, 5), abs=0.2)


@pytest.mark.parametrize(
    "text", ["min-max(average=1.5)", "entropy(bits=12)", "mse(bins=100)", "entropy(bits=0)"]
)
def test_settings_that_cannot_be(text: str) -> None:
    with pytest.raises(BadSettings):
        spelling.parse_plugin(Observer, text)


# Extents of channels, in memory that does not depend on the samples.


def test_every_channel_has_its_own_extent() -> None:
    watch = Channels().start()
    watch.update(0, np.array([[[1, -2, 0]], [[3, 5, 0]]], np.float32))
    watch.update(0, np.zeros((0, 3), np.float32))
    watch.update(0, np.array([[-7, 0, 0]], np.float32))
    assert watch.result() == Range(-7, 5, ((-7, 3), (-2, 5), (0, 0)))


def test_changing_width_is_refused() -> None:
    watch = Channels().start()
    watch.update(0, np.zeros((1, 3), np.float32))
    with pytest.raises(BadData, match="length 4 after 3"):
        watch.update(0, np.zeros((1, 4), np.float32))


# Observers of what 16-bit formats have to hold: extents without masks, magnitudes, inner sums.


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


# The whole extent, in constant memory.


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
