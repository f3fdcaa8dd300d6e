"""Metrics against labels, and those of the user."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import codec
from ortune.metrics.function import Function
from ortune.metrics.score import EvaluateScore
from ortune.metrics.top1 import Top1
from ortune.metrics.top5 import Top5

SCORES = hnp.arrays(np.float32, (1, 7), elements=st.floats(-8, 8, width=16))


def one(metric: Metric, scores: np.ndarray, label: object) -> float:
    outputs = {"logits": scores}
    return float(metric.records([outputs], [outputs], [label])[0, 0])


@settings(deadline=None)
@given(scores=SCORES, label=st.integers(0, 6))
def test_top1_is_argmax_and_top5_is_the_sorted_first_five(scores: np.ndarray, label: int) -> None:
    assert one(Top1(), scores, label) == float(scores[0].argmax() == label)
    best = np.argsort(-scores[0], kind="stable")[:5]
    assert one(Top5(), scores, label) == float(label in best)


def test_a_sample_of_several_positions_scores_its_share() -> None:
    scores = np.eye(4)[[0, 1, 2, 3]][None]
    assert one(Top1(), scores, [0, 1, 0, 0]) == 0.5
    assert one(Top1(), scores[0], [0, 1, 2, 0]) == 0.75


def test_labels_outside_the_classes_are_wrong() -> None:
    assert one(Top1(), np.array([[0.0, 1.0]]), 7) == 0
    assert one(Top1(), np.array([[1.0, 0.0]]), -1) == 0
    assert one(Top1(), np.array([[0.0, 1.0]]), np.array([1.0])) == 1


@pytest.mark.parametrize(
    ("label", "what"),
    [
        ("cat", "not a class index"),
        (0.5, "not a class index"),
        ([1, 2], "Got 2 a sample, expected 1"),
    ],
)
def test_labels_that_do_not_fit(label: object, what: str) -> None:
    with pytest.raises(BadData, match=what):
        one(Top1(), np.zeros((1, 3)), label)


def test_outputs_that_do_not_fit() -> None:
    with pytest.raises(BadData, match="top1 needs labels"):
        Top1().records([{}], [{}], None)
    with pytest.raises(BadData, match="0 of the outputs y"):
        Top1().records([{"y": np.zeros(3)}], [{"y": np.zeros(3)}], [1])
    two = {"a": np.zeros((1, 3)), "b": np.zeros((1, 3))}
    with pytest.raises(BadData, match=r"2 of the outputs a, b.*\n  fix: name one"):
        Top1().records([two], [two], [1])
    assert Top1(output="b").records([two], [two], [0])[0, 0] == 1
    with pytest.raises(BadData, match="no top-5"):
        one(Top5(), np.zeros((1, 5)), 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", [Top1(), Top5()], ids=str)
def test_nan_and_infinity_never_pass(metric: Metric, bad: float) -> None:
    good = np.arange(7.0)[None]
    wrong = good.copy()
    wrong[0, 0] = bad
    record = metric.records([{"y": good}], [{"y": wrong}], [6])
    assert np.isnan(record).all()
    assert math.isnan(metric.aggregate(record))
    both = metric.records([{"y": np.full((1, 7), np.nan)}], [{"y": np.full((1, 7), np.nan)}], [6])
    assert np.isnan(both).all()


def test_a_candidate_without_the_output_fails() -> None:
    good = {"y": np.arange(7.0)[None]}
    for actual in ({}, {"y": np.zeros((1, 3))}):
        value = Top1().aggregate(Top1().records([good], [actual], [6]))
        assert math.isnan(value) or value == 0


MODULE = """
import numpy as np

def share(expected, actual, label):
    return float(np.mean(expected["y"] == actual["y"])) if label is None else float(label)

def error(expected, actual, label):
    return float(abs(expected["y"] - actual["y"]).max())
error.higher_is_better = False

def f1(expected, actual, label):
    hit, said = label & actual["y"], actual["y"]
    return [hit.sum(), said.sum(), label.sum()]
f1.aggregate = lambda rows: 2 * rows[:, 0].sum() / (rows[:, 1].sum() + rows[:, 2].sum())

def middle(run):
    return [1.0]
middle.aggregate = np.median
middle.higher_is_better = False

def between(expected, actual, label):
    return 1.0
between.aggregate = np.median
between.higher_is_better = False

def fails(expected, actual, label):
    raise KeyError("no such output")

def nothing(expected, actual, label):
    return None

def odd(expected, actual, label):
    return 1.0
odd.aggregate = lambda rows: "high"

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_metric_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    return name


Y = {"y": np.array([1.0, 2.0])}
Z = {"y": np.array([1.0, 5.0])}


def test_a_function_of_the_user(module: str) -> None:
    budget = Budget.parse(f"{module}:share>=0.5")
    assert budget.metric == Function(path=f"{module}:share")
    records = budget.metric.records([Y, Y], [Y, Z], None)
    np.testing.assert_array_equal(records, [[1], [0.5]])
    assert budget.metric.aggregate(records) == 0.75
    assert budget.metric.records([Y], [Z], [9])[0, 0] == 9
    assert codec.decode(Metric, codec.encode(budget.metric)) == budget.metric
    assert Budget.parse(str(budget)) == budget


def test_its_direction_is_its_attribute(module: str) -> None:
    budget = Budget.parse(f"{module}:error<=0.5")
    assert budget.admits(0.4, 0)
    assert not budget.admits(0.6, 0)
    with pytest.raises(BadSettings, match="lower"):
        Budget.parse(f"{module}:error>=0.5")


def test_its_aggregate_sees_all_numbers(module: str) -> None:
    metric = Function(path=f"{module}:f1")
    truth, said = np.array([True, True, False]), {"y": np.array([True, False, True])}
    records = metric.records([said, said], [said, said], [truth, truth])
    assert records.shape == (2, 3)
    assert metric.aggregate(records) == 0.5


def test_broken_outputs_and_nan_never_pass(module: str) -> None:
    metric = Function(path=f"{module}:share")
    record = metric.records([Y], [{"y": np.array([1.0, np.nan])}], None)
    assert math.isnan(metric.aggregate(record))
    own = EvaluateScore(path=f"{module}:middle")
    assert math.isnan(own.aggregate(np.array([[1.0], [math.nan], [1.0]])))


@pytest.mark.parametrize("name", ["fails", "nothing"])
def test_a_function_that_fails_is_two_lines(module: str, name: str) -> None:
    with pytest.raises(
        BadData, match=rf"{module}:{name} (fails: KeyError|returned None).*\n  fix"
    ):
        Function(path=f"{module}:{name}").records([Y], [Y], None)


def test_an_aggregate_that_fails_is_two_lines(module: str) -> None:
    metric = Function(path=f"{module}:odd")
    with pytest.raises(BadData, match=r"own aggregate fails: ValueError.*\n  fix"):
        metric.aggregate(np.ones((2, 1)))


@pytest.mark.parametrize("suffix", ["_broken:f", "_missing:f", ":missing", ":number"])
def test_an_import_that_fails_is_two_lines(module: str, suffix: str) -> None:
    with pytest.raises(BadSettings, match=rf"{module}.*\n  fix: ") as error:
        Budget.parse(f"{module}{suffix}>=0.5")
    assert len(str(error.value).splitlines()) == 2


def test_score_takes_its_records_from_elsewhere(module: str) -> None:
    with pytest.raises(BadData, match="--evaluate"):
        EvaluateScore().records([Y], [Y], None)
    assert EvaluateScore().aggregate(np.array([[1.0], [0.0]])) == 0.5
    own = EvaluateScore(path=f"{module}:middle")
    assert own.aggregate(np.array([[1.0], [1.0], [7.0]])) == 1
    assert not own.higher_is_better
    assert EvaluateScore().higher_is_better


def test_right_or_wrong_is_exact_and_a_share_of_positions_is_a_mean() -> None:
    assert Top1().bounds == (0, 1)
    assert Top1().kind() is Top5().kind(np.array([[1.0], [0.0]])) is Kind.RIGHT
    assert Top1().kind(np.array([[1.0], [0.25]])) is Kind.MEAN


def test_the_kind_of_a_function_is_its_attributes(module: str) -> None:
    assert Function(path=f"{module}:between").kind() is Kind.FIGURE
    plain = Function(path=f"{module}:error")
    assert (plain.kind(), plain.bounds, plain.kept_by) == (Kind.MEAN, None, 0)
    shared = Function(path=f"{module}:between", share=0.9)
    assert shared.kind() is Kind.SHARE
    assert shared.each(np.array([[1.0], [3.0]])).tolist() == [1.0, 3.0]
    assert EvaluateScore().kind() is Kind.MEAN


def test_a_share_of_a_function_is_spelled(module: str) -> None:
    text = f'function(path="{module}:share", share=0.9)>=0.5'
    budget = Budget.parse(text)
    assert Budget.parse(str(budget)) == budget
    assert "share=0.9" in str(budget)
