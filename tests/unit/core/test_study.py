"""Which finalist wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.studies import CLEAN, study, trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import winner
from ortune.core.trial import Interval, Plan, Trial


def final(key: str, backend: Cpu, ratio: float) -> Trial:
    interval = Interval(ratio, ratio - 0.01, ratio + 0.01)
    return replace(trial(key, Plan(CLEAN, backend), ratio), part="final", ratio=interval)


def test_of_equally_fast_finalists_the_one_with_the_fewest_settings_wins() -> None:
    plain = final("a" * 16, Cpu(threads=1), 0.502)
    tuned = final("b" * 16, Cpu(threads=1, arena=False), 0.5)
    assert winner([tuned, plain], strict=False) == plain


def test_a_setting_that_gains_more_than_one_percent_wins() -> None:
    plain = final("a" * 16, Cpu(threads=1), 0.52)
    tuned = final("b" * 16, Cpu(threads=1, arena=False), 0.5)
    assert winner([tuned, plain], strict=False) == tuned


def test_a_study_shows_its_winner_and_a_row_a_trial(tmp_path: Path) -> None:
    made = study(tmp_path)
    shown = repr(made).splitlines()
    assert shown[0] == "Study"
    assert "clean @ cpu(threads=1)" in shown[2]
    assert len(shown) == 9, "what, verdict and key figures: no trials, no samples"
    rows = made.records()
    assert [row["plan"] for row in rows] == [str(trial.plan) for trial in made.trials]
    assert rows[-1]["part"] == "final"
    assert rows[-1]["ratio"] == 0.52
    page = made._repr_html_()
    assert page.count("<tr>") == 8 + 1 + len(rows)
