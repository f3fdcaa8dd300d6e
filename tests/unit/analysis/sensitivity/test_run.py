"""What a survey had time for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit import surveys

from ortune.analysis.sensitivity.run import known, reached
from ortune.experiment.surveys.progress import SurveyProgress
from ortune.regions.gains import Gain


def test_a_region_is_reached_when_its_pattern_was_timed(tmp_path: Path) -> None:
    progress = SurveyProgress(tmp_path, "k")
    region = surveys.REGIONS[0]
    assert not reached(region, progress)
    progress.add(Gain(region.pattern, region.time_gained), 1.0)
    assert reached(region, progress)
    assert reached(surveys.cost("head", 0.0, 0.0, "00"), progress), "nothing is to be timed"


def test_what_failed_was_reached_and_what_is_late_was_not(tmp_path: Path) -> None:
    progress = SurveyProgress(tmp_path, "k")
    late = replace(surveys.FAILED, error="no time was left to measure it")
    assert reached(surveys.FAILED, progress)
    assert not reached(late, progress)
    assert not known(late)
    assert known(surveys.REGIONS[0])
