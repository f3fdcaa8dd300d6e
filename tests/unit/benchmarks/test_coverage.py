"""The coverage of `judge`: populations are outside by a hair, and the counts' tests are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy import operator_cases
from benchmarks.accuracy.acceptance import Case, divide_samples, hand_out, list_cases
from benchmarks.accuracy.coverage import PARTS, cells, name, summary, tail
from benchmarks.accuracy.coverage_cells import Population, honest, outside
from benchmarks.accuracy.operators import GOOD, compare_outputs, examine_cases, summarize_rows
from benchmarks.accuracy.selection import PLANS, SELECTIONS
from benchmarks.tables.accuracy import coverage, handed_out, offered, power

from ortune.core.budget import Budget
from ortune.core.metric import Kind

MANY = 60_000


@pytest.mark.parametrize("one", outside(), ids=lambda one: f"{one.kind}: {one.name}")
def test_what_is_outside_is_outside_by_little(one: Population) -> None:
    excess, error = beyond(one)
    assert -4 * error < excess < 0.002 + 4 * error


def beyond(one: Population) -> tuple[float, float]:
    """Return by how much a population misses its budget, and the error of that figure."""
    candidate, baseline, groups = one.draw(np.random.default_rng(1), MANY)
    budget = Budget.parse(one.budget)
    if one.kind == "share":
        scores = budget.metric.each(candidate)
        out = ~np.array([budget.admits(float(score), 0.0) for score in scores])
        if groups is not None:
            first = np.unique(np.array(groups, np.int64), return_index=True)[1]
            out = np.logical_or.reduceat(out, first)
        return float(out.mean()) - (1 - budget.metric.kept_by), float(
            out.std() / np.sqrt(len(out))
        )
    lost = baseline[:, 0] - candidate[:, 0] if budget.relative else 1 - candidate[:, 0]
    allowed = -budget.limit if budget.relative else 1 - budget.limit
    spread = float(lost.std() / np.sqrt(len(lost))) * (2.5 if groups else 1.0)
    return float(lost.mean()) - allowed, spread


def test_records_of_scores_keep_their_bounds() -> None:
    for one in outside():
        if one.kind == "mean":
            candidate, baseline, _ = one.draw(np.random.default_rng(2), 5000)
            assert candidate.min() >= 0 and candidate.max() <= 1
            assert baseline.min() >= 0 and baseline.max() <= 1


def test_every_cell_has_a_name_of_its_own() -> None:
    every = [(part, name(part, index), n) for part in PARTS for index, n in cells(part)]
    assert len(every) == len(set(every))


def test_honest_plans_are_within() -> None:
    for one in honest():
        candidate, baseline, _ = one.draw(np.random.default_rng(3), MANY)
        assert abs(float((candidate - baseline).mean())) < 0.01


def test_plans_of_a_selection_share_their_samples() -> None:
    for one in SELECTIONS:
        plans, base = one.draw(np.random.default_rng(0), one.count)
        assert plans.shape == (PLANS, one.count) and base.shape == (one.count,)


def test_the_tail_is_the_exact_binomial() -> None:
    assert tail(0, 10, 0.05) == pytest.approx(1.0)
    assert tail(10, 10, 0.05) == pytest.approx(0.05**10)
    assert tail(1, 10, 0.05) == pytest.approx(1 - 0.95**10)


def searches(name: str, hits: int, outside: bool, plans: int = 1) -> dict[str, Any]:
    """Return a row of 400 searches."""
    return {
        "part": "handed out", "name": f"{name}, {plans} plans", "n": 100, "draws": 400,
        "plans": plans, "outside": outside, "handed out": hits, "fastest": hits,
        "proved": hits // 5,
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    def one(part: str, hits: int, **more: Any) -> dict[str, Any]:
        return {"part": part, "name": part, "n": 100, "draws": 2000, "proved": hits, **more}

    return [
        one("share", 100), one("right", 200), one("never", 0), one("power", 1500),
        searches("labels", 90, True), searches("labels", 30, True, 30),
        searches("half", 280, False),
    ]  # fmt: skip


def test_too_many_false_proofs_reject_a_cell() -> None:
    found = summary(rows())
    assert found["cells rejected"] == ["right, 100 samples"]
    assert found["cells"] == 2 and found["significance of a cell"] == 0.025
    assert found["largest share falsely proved"] == 0.1
    text = coverage(found)
    assert "| a share of the samples | 1 | 100 to 100 | 2,000 | 5.00 % |" in text
    assert "right, 100 samples" in text and "0 were called proved" in text
    assert "| power | 75 % |" in power(found)


def test_the_bars_are_the_least_numbers_that_prove() -> None:
    bars = summary(rows())["bars"]
    assert list(bars.values()) == ["proved", "likely", "proved", "likely"]


def test_too_many_bad_plans_handed_out_reject_a_cell() -> None:
    found = summary([*rows(), searches("SNR", 120, True)])
    assert found["handed out"]["cells rejected"] == ["SNR, 1 plans, 100 samples"]
    assert found["handed out"]["cells"] == 3
    text = handed_out(found)
    assert "| labels | 22 % (4 %) | 8 % (2 %) |" in text and "share is 30.0 %" in text
    assert "| half | 70 % |" in offered(summary(rows()))


@pytest.mark.parametrize("case", list_cases(), ids=lambda case: case.name)
def test_plans_of_a_search_are_where_their_case_says(case: Case) -> None:
    records, base = case.draw(np.random.default_rng(4), 40_000, 2)
    budget = Budget.parse(case.budget)
    slack = 0.004
    for at, plan in enumerate(records):
        if budget.metric.kind(base) is Kind.SHARE:
            each = budget.metric.each(plan)
            inside = float(np.mean([budget.admits(float(score), 0.0) for score in each]))
            ahead = inside - budget.metric.kept_by
        else:
            value, before = budget.metric.aggregate(plan), budget.metric.aggregate(base)
            ahead = value - budget.bound(before)
        assert (ahead > 0) if at == 0 and not case.outside else (ahead < slack)


def test_samples_are_divided_as_a_search_divides_them() -> None:
    parts = divide_samples("top1>=base-0.01", 1000)
    assert (len(parts.search), len(parts.scored), len(parts.proof)) == (464, 872, 408)
    assert len(divide_samples("cosine>=0.999", 50).scored) == 38


def test_a_search_hands_out_what_is_proved_or_likely() -> None:
    by_name = {case.name: case for case in list_cases()}
    rng = np.random.default_rng(0)
    bad = hand_out(by_name["labels, 2 points lost"], rng, 200, 30, 40)
    assert bad["handed out"] == 0
    good = hand_out(by_name["labels, a tenth lost"], rng, 1000, 1, 40)
    assert good["handed out"] == good["fastest"] > 35


# Models of single operators: each command is right or refuses in two lines.


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
