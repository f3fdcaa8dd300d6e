"""The best observer is named only where the paired test says so."""

from __future__ import annotations

import numpy as np

from ortune.analysis.calibration_quality.compare_observers import ObserverScore, rank_observers
from ortune.core.budget import Budget
from ortune.core.trial import Score

BUDGET = Budget.parse("agreement>=0.9")


def _row(name: str, right: np.ndarray, noise: np.ndarray, **fields: str) -> ObserverScore:
    nan = float("nan")
    value = float(right.mean())
    snr = float(10 * np.log10(len(noise) / noise.sum()))
    return ObserverScore(
        name,
        fields.get("augment", ""),
        score=Score("agreement", value, 1.0, nan, nan, len(right), None, None, ""),
        snr=snr,
        records=(
            np.stack([right, np.ones_like(right)], axis=1),
            np.stack([np.ones_like(noise), noise], axis=1),
        ),
    )


def _right(share: float, count: int = 400) -> np.ndarray:
    found = np.zeros(count)
    found[: round(share * count)] = 1
    return found


def _noise(level: float, count: int = 400, seed: int = 0) -> np.ndarray:
    return level * (1 + 0.1 * np.random.default_rng(seed).random(count))


def test_a_clear_winner_is_named_by_the_budgets_metric() -> None:
    rows = [
        _row("mse", _right(0.7), _noise(0.1)),
        _row("min-max", _right(0.95), _noise(0.2)),
        _row("entropy", _right(0.5), _noise(0.3)),
    ]
    ranked, best, by = rank_observers(rows, BUDGET, None)
    assert (best, by) == ("min-max", "agreement")
    assert [row.standing for row in ranked] == ["best", "worse", "worse"]


def test_what_the_metric_cannot_tell_apart_snr_may() -> None:
    rows = [
        _row("mse", _right(0.95), _noise(0.01)),
        _row("min-max", _right(0.955), _noise(0.02)),
        _row("entropy", _right(0.5), _noise(0.001)),
    ]
    ranked, best, by = rank_observers(rows, BUDGET, None)
    assert (best, by) == ("mse", "snr")
    assert {row.observer: row.standing for row in ranked} == {
        "min-max": "lower snr",
        "mse": "best",
        "entropy": "worse",
    }


def test_equal_rows_have_no_best() -> None:
    rows = [_row(name, _right(0.9), _noise(0.01)) for name in ("min-max", "mse")]
    ranked, best, by = rank_observers(rows, BUDGET, None)
    assert (best, by) == ("", "")
    assert [row.standing for row in ranked] == ["not worse", "not worse"]


def test_rows_of_lower_snr_are_not_called_equal() -> None:
    rows = [
        _row("mse", _right(0.95), _noise(0.01)),
        _row("min-max", _right(0.95), _noise(0.01)),
        _row("entropy", _right(0.95), _noise(0.9)),
    ]
    ranked, best, _ = rank_observers(rows, BUDGET, None)
    assert best == ""
    assert [row.standing for row in ranked] == ["not worse", "not worse", "lower snr"]


def test_few_groups_make_a_difference_noise() -> None:
    """300 views of two photos are two observations."""
    worse = _right(1.0, 300)
    worse[::20] = 0
    rows = [_row("a", _right(1.0, 300), _noise(0.1, 300)), _row("b", worse, _noise(0.1, 300))]
    assert rank_observers(rows, BUDGET, None)[1] == "a"
    groups = ["one"] * 150 + ["two"] * 150
    assert rank_observers(rows, BUDGET, groups)[1] == ""


def test_rows_that_failed_come_last_and_win_nothing() -> None:
    rows = [ObserverScore("mse", "", error="no"), _row("min-max", _right(0.9), _noise(0.1))]
    ranked, best, _ = rank_observers(rows, BUDGET, None)
    assert [row.observer for row in ranked] == ["min-max", "mse"]
    assert best == ""
    assert ranked[1].standing == "failed"
    assert rank_observers(rows[:1], BUDGET, None)[1] == ""


def test_a_broken_score_is_no_leader() -> None:
    nan = np.full(400, np.nan)
    broken = _row("entropy", nan, _noise(0.001))
    ranked, best, _ = rank_observers(
        [broken, _row("min-max", _right(0.9), _noise(0.1))], BUDGET, None
    )
    assert ranked[0].observer == "min-max"
    assert best != "entropy"


def test_copies_are_part_of_a_rows_name() -> None:
    rows = [
        _row("mse", _right(0.99), _noise(0.1), augment="flip"),
        _row("mse", _right(0.5), _noise(0.1)),
    ]
    assert rank_observers(rows, BUDGET, None)[1] == "mse with flip"
