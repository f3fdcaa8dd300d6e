"""Metrics against the baseline's outputs: cosine, max-error, snr, agreement."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.metric import Kind, Metric
from ortune.metrics.agreement import Agreement
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.cosine import Cosine
from ortune.metrics.max_error import MaxError
from ortune.metrics.snr import Snr

METRICS: list[Metric] = [Cosine(), MaxError(), Snr(), Agreement()]
PERFECT = {"cosine": 1.0, "max-error": 0.0, "snr": 200.0, "agreement": 1.0}

FLOATS = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    hnp.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=4),
    elements=st.floats(-1e4, 1e4, width=16),
)
INTEGERS = hnp.arrays(st.sampled_from([np.int8, np.int64, np.uint8, np.bool_]), (2, 3))
OUTPUTS = st.lists(
    st.fixed_dictionaries({"y": FLOATS, "z": st.one_of(FLOATS, INTEGERS)}), min_size=1, max_size=3
)


def score(metric: Metric, expected: dict, actual: dict) -> float:  # type: ignore[type-arg]
    return metric.aggregate(metric.records([expected], [actual], None))


@settings(deadline=None)
@given(outputs=OUTPUTS)
@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_the_baseline_against_itself_is_perfect(metric: Metric, outputs: list) -> None:  # type: ignore[type-arg]
    records = metric.records(outputs, outputs, None)
    assert len(records) == len(outputs)
    assert metric.aggregate(records) == pytest.approx(PERFECT[metric.name()], abs=1e-12)


@settings(deadline=None)
@given(expected=FLOATS, data=st.data())
def test_bounds(expected: np.ndarray, data: st.DataObject) -> None:
    elements = st.floats(-1e4, 1e4, width=16)
    actual = data.draw(hnp.arrays(expected.dtype, expected.shape, elements=elements))
    one, two = {"y": expected}, {"y": actual}
    assert -1 <= score(Cosine(), one, two) <= 1
    assert 0 <= score(Agreement(), one, two) <= 1
    assert score(MaxError(), one, two) >= 0
    assert -200 <= score(Snr(), one, two) <= 200
    assert (score(MaxError(), one, two) == 0) == bool((expected == actual).all())


@settings(deadline=None)
@given(expected=FLOATS, factor=st.floats(0.25, 8))
def test_cosine_and_agreement_ignore_scale(expected: np.ndarray, factor: float) -> None:
    exact = expected.astype(np.float64)
    assert score(Cosine(), {"y": exact}, {"y": exact * factor}) == pytest.approx(1)
    assert score(Agreement(), {"y": exact}, {"y": exact * 2.0}) == 1


def test_known_values() -> None:
    one, two = {"y": np.array([[3.0, 4.0]])}, {"y": np.array([[4.0, 3.0]])}
    assert score(Cosine(), one, two) == pytest.approx(24 / 25)
    assert score(MaxError(), one, two) == 1
    assert score(Snr(), one, two) == pytest.approx(10 * math.log10(25 / 2))
    assert score(Agreement(), one, two) == 0


def test_snr_sums_powers_over_outputs_and_samples() -> None:
    expected = [
        {"a": np.array([3.0]), "b": np.array([1.0])},
        {"a": np.array([0.0]), "b": np.ones(2)},
    ]
    actual = [
        {"a": np.array([3.0]), "b": np.array([2.0])},
        {"a": np.array([1.0]), "b": np.ones(2)},
    ]
    records = Snr().records(expected, actual, None)
    np.testing.assert_allclose(records, [[10, 1], [2, 1]])
    assert Snr().aggregate(records) == pytest.approx(10 * math.log10(6))
    assert Snr(output="b").aggregate(Snr(output="b").records(expected, actual, None)) > 4


def test_the_worst_output_and_the_worst_sample_count() -> None:
    same, other = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    expected = {"a": same, "b": same}
    assert score(Cosine(), expected, {"a": same, "b": other}) == 0
    assert score(Agreement(), expected, {"a": same, "b": other}) == 0
    records = MaxError().records([expected] * 2, [expected, {"a": same, "b": same * 5}], None)
    assert MaxError().aggregate(records) == 4
    assert score(Cosine(output="a"), expected, {"a": same, "b": other}) == 1


def test_values_too_large_to_square_in_float64() -> None:
    huge = {"y": np.array([[1e200, 1e-200]])}
    assert score(Cosine(), huge, huge) == 1
    assert score(Cosine(), {"y": np.zeros((1, 2))}, {"y": np.zeros((1, 2))}) == 1
    assert score(Cosine(), {"y": np.zeros((1, 2))}, {"y": np.ones((1, 2))}) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_nan_and_infinity_never_pass(metric: Metric, bad: float) -> None:
    good = {"y": np.array([[1.0, 2.0, 0.0]], np.float32)}
    wrong = {"y": np.array([[1.0, 2.0, bad]], np.float32)}
    records = metric.records([good, good], [good, wrong], None)
    assert np.isnan(records[1]).all()
    assert not np.isnan(records[0]).any()
    value = metric.aggregate(records)
    assert math.isnan(value)
    assert not Budget(metric, -1e9 if metric.higher_is_better else 1e9).admits(value, 0)


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_the_baselines_own_infinities_are_left_out(metric: Metric) -> None:
    masked = {"y": np.array([[1.0, -np.inf, np.nan]])}
    assert score(metric, masked, masked) == PERFECT[metric.name()] or metric.name() == "agreement"
    assert math.isnan(score(metric, masked, {"y": np.array([[1.0, -3e38, np.nan]])}))


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_no_records_is_no_score(metric: Metric) -> None:
    assert math.isnan(metric.aggregate(metric.records([], [], None)))


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_a_missing_or_misshapen_output_is_never_good(metric: Metric) -> None:
    good = {"y": np.array([[1.0, 2.0]])}
    for actual in ({}, {"y": np.array([[1.0, 2.0, 3.0]])}, {"y": np.array([1.0, 2.0])}):
        value = score(metric, good, actual)
        assert math.isnan(value) or value <= 0
        assert not (metric.higher_is_better is False and value <= 0)


def test_integers_booleans_and_text_are_equal_or_not() -> None:
    for one, two in (
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])),
        (np.array([True] * 4), np.array([True, True, True, False])),
        (np.array(["a", "b", "c", "d"]), np.array(["a", "b", "c", "dd"])),
    ):
        assert score(Agreement(), {"y": one}, {"y": two}) == 0.75
        assert score(Cosine(), {"y": one}, {"y": two}) == 0
        assert score(Cosine(), {"y": one}, {"y": one}) == 1
        assert score(MaxError(), {"y": one}, {"y": two}) == 1
        assert score(Snr(), {"y": one}, {"y": two}) == pytest.approx(10 * math.log10(4))


def test_a_wrong_class_shows_in_the_snr_beside_floats() -> None:
    boxes = np.full((1000, 4), 100.0)
    classes = np.zeros(1000, np.int64)
    wrong = classes.copy()
    wrong[0] = 1
    one, two = {"boxes": boxes, "class": classes}, {"boxes": boxes, "class": wrong}
    assert score(Snr(), one, two) == pytest.approx(30)


def test_large_integers_differ_by_one() -> None:
    one, two = {"y": np.array([2**53])}, {"y": np.array([2**53 + 1])}
    assert score(MaxError(), one, two) == 1
    assert score(Cosine(), one, two) == 0


def test_other_float_types() -> None:
    one = np.array([[1.0, 2.0, 3.0]]).astype(ml_dtypes.bfloat16)
    two = np.array([[1.0, 2.0, 3.5]]).astype(ml_dtypes.bfloat16)
    assert score(MaxError(), {"y": one}, {"y": two}) == 0.5
    assert score(Agreement(), {"y": one}, {"y": two}) == 1
    twist = np.array([[1 + 1j, 0]])
    assert score(MaxError(), {"y": twist}, {"y": twist + 2j}) == 2


def test_agreement_needs_something_that_decides() -> None:
    with pytest.raises(BadData, match="agreement: no output"):
        Agreement().records([{"y": np.ones((4, 1))}], [{"y": np.ones((4, 1))}], None)


@pytest.mark.parametrize("name", ["cosine", "agreement", "snr", "max-error"])
def test_an_unknown_output_is_two_lines(name: str) -> None:
    sign = "<=" if name == "max-error" else ">="
    metric = Budget.parse(f"{name}(output=nope){sign}1").metric
    with pytest.raises(BadData, match=r"no output 'nope'\n  fix: use one of: y"):
        metric.records([{"y": np.ones(2)}], [{"y": np.ones(2)}], None)


@settings(deadline=None)
@given(values=FLOATS, step=st.floats(1e-3, 1))
def test_less_noise_is_a_better_snr(values: np.ndarray, step: float) -> None:
    exact = values.astype(np.float64)
    assume(np.abs(exact).sum() > 0)
    noise = np.ones_like(exact)
    near = score(Snr(), {"y": exact}, {"y": exact + step * noise})
    far = score(Snr(), {"y": exact}, {"y": exact + 2 * step * noise})
    assert near == pytest.approx(far + 20 * math.log10(2), rel=1e-6)


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_each_sample_has_the_score_of_a_record_alone(metric: Metric) -> None:
    rng = np.random.default_rng(0)
    expected = [{"y": rng.normal(size=(3, 4))} for _ in range(6)]
    actual = [{"y": one["y"] + 0.3 * rng.normal(size=(3, 4))} for one in expected]
    records = metric.records(expected, actual, None)
    alone = [metric.aggregate(row[None]) for row in records]
    assert metric.each(records).tolist() == pytest.approx(alone)
    broken = np.vstack([records, np.full((1, records.shape[1]), np.nan)])
    assert np.isnan(metric.each(broken)).tolist() == [False] * 6 + [True]


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_a_share_keeps_the_limit_unless_it_is_0(metric: Metric) -> None:
    assert isinstance(metric, Fidelity)
    assert (metric.kind(), metric.kept_by) == (Kind.SHARE, 0.95)
    assert replace(metric, share=0).kind() is Kind.FIGURE


def test_agreement_counts_the_decisions_of_a_sample() -> None:
    one = {"y": np.eye(3)[None], "tag": np.array([[1, 2]])}
    two = {"y": np.eye(3)[None, ::-1], "tag": np.array([[1, 2]])}
    assert Agreement().record(one, two, None) == (pytest.approx(1 / 3), 3)
    assert Agreement(output="tag").record(one, two, None) == (1.0, 2)
    single = [{"y": np.eye(1, 4, k)} for k in range(4)]
    records = Agreement().records(single, single, None)
    assert records.tolist() == [[1.0, 1.0]] * 4
    assert Agreement().kind(records) is Kind.RIGHT
    assert Agreement(share=0.0).kind(records) is Kind.FIGURE
    assert (
        Agreement().kind(Agreement().records([*single, one], [*single, one], None)) is Kind.SHARE
    )
    assert Agreement().kind(records[:0]) is Agreement().kind() is Kind.SHARE


def test_agreement_on_another_axis_reads_masks() -> None:
    scores = np.random.default_rng(0).standard_normal((1, 3, 4, 5))
    other = scores.copy()
    other[0, :, 0, 0] = np.roll(scores[0, :, 0, 0], 1)
    one, two = {"y": scores}, {"y": other}
    assert Agreement(axis=1).record(one, two, None) == (pytest.approx(19 / 20), 20)
    with pytest.raises(BadData, match="has classes along axis 4"):
        Agreement(axis=4).record(one, two, None)


@pytest.mark.parametrize(
    ("expected", "actual", "kept"),
    [
        ([0.9, 0.1], [0.8, 0.2], 1.0),
        ([0.9, 0.1], [0.6, 0.4], 0.0),
        ([9.0, 0.0], [4.0, 0.0], 1.0),  # logits: from 0.9999 to 0.98
        ([3.0, 0.0], [0.5, 0.0], 0.0),  # from 0.95 to 0.62
        ([3.0, -np.inf], [1.0, -np.inf], 1.0),
    ],
)
def test_a_decision_is_not_kept_where_its_probability_changes(
    expected: list[float], actual: list[float], kept: float
) -> None:
    one, two = {"y": np.array([expected])}, {"y": np.array([actual])}
    assert Agreement(change=0.2).record(one, two, None) == (kept, 1)
    assert Agreement().record(one, two, None) == (1.0, 1)


def test_a_silent_output_of_another_shape_is_all_noise() -> None:
    expected = {"y": np.zeros((2, 3), np.float32)}
    record = Snr().record(expected, {"y": np.zeros((3, 2), np.float32)}, None)
    assert record == (0.0, 1.0)
    assert Snr().aggregate(np.array([record])) < -100
    same = Snr().record(expected, {"y": np.zeros((2, 3), np.float32)}, None)
    assert Snr().aggregate(np.array([same])) > 100, "equal zeros are equal outputs"
