"""Which finalist wins."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.studies import CLEAN, trial

from ortune.backends.cpu import Cpu
from ortune.core.study import winner
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
