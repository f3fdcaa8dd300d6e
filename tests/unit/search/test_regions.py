"""Searches by region over scripted results: what is surveyed, mixed, journalled and kept."""

import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.search.driver import Kill, record
from tests.unit.search.scenarios import TRANSFORMER, Piece, Scenario, on
from tests.unit.search.test_adaptive import view

from ortune.core.trial import Status, Trial
from ortune.search.expectation.mixtures import longest_s
from ortune.search.experiment import surveys
from ortune.search.experiment.ledger import read_study
from ortune.search.loop import RegionSearch
from ortune.search.mixed_precision.survey import MixtureOutcome, Survey, SurveyRequest

SOUND = tuple(Piece(f"sound{i}", 0.06, 0.03) for i in range(8))
FRAGILE = Piece("fragile", 0.05, 5.0)
WORTHLESS = Piece("worthless", -0.03, 0.05)
PLANTED = Scenario(
    TRANSFORMER,
    on="cpu",
    seconds=40.0,
    pieces=(FRAGILE, *SOUND, WORTHLESS),
    rules=(on("^survey", seconds=6),),
)


def searched(scenario: Scenario, folder: Path, kill: Kill | None = None) -> dict[str, Any]:
    return record(scenario, folder, kill=kill)


def of_stage(folder: Path, stage: str) -> list[Trial]:
    return [t for t in read_study(folder).trials if t.stage == stage and t.part == "search"]


def mixtures(folder: Path) -> list[MixtureOutcome]:
    return [one for one in surveys.read_journal(folder) if isinstance(one, MixtureOutcome)]


def test_a_fragile_and_a_worthless_region_are_left_in_float(tmp_path: Path) -> None:
    searched(PLANTED, tmp_path)
    found = mixtures(tmp_path)
    assert found[0].left == ("fragile", "worthless")
    assert (found[0].regions, found[0].kept) == (10, True)
    assert found[0].lost == pytest.approx(0.24)
    best = read_study(tmp_path).best
    assert best.part == "final"
    assert "exclude=[fragile, fragile/act, worthless, worthless/act]" in best.plan.spelling
    assert best.ratio.value < 0.56
    proposed = of_stage(tmp_path, "regions")[0].plan.recipe.name
    assert proposed.endswith(", 2 of 10 regions in float")


def test_the_journal_says_what_was_expected_and_measured(tmp_path: Path) -> None:
    searched(PLANTED, tmp_path)
    first, *rest = surveys.read_journal(tmp_path)
    assert isinstance(first, Survey)
    assert [region.region for region in first.regions][:2] == ["fragile", "sound0"]
    assert rest
    for one in mixtures(tmp_path):
        assert one.survey in {
            s.key for s in surveys.read_journal(tmp_path) if isinstance(s, Survey)
        }
        assert one.expected_ratio == pytest.approx(one.ratio.value, abs=0.1)
        assert one.why


def test_switched_off_it_surveys_and_mixes_nothing(tmp_path: Path) -> None:
    log = searched(replace(PLANTED, by_region=False), tmp_path)
    assert not any("survey" in text or "exclude" in text for text in log["proposals"])
    assert not (tmp_path / surveys.NAME).exists()


def test_a_few_mixtures_find_the_limit(tmp_path: Path) -> None:
    pieces = tuple(Piece(f"p{i}", 0.03 + 0.004 * (i % 5), 0.1 + 0.05 * i) for i in range(14))
    scenario = replace(PLANTED, pieces=pieces, together=(1.6, 0.9), seconds=120.0)
    searched(scenario, tmp_path)
    one = [m for m in mixtures(tmp_path) if m.survey == mixtures(tmp_path)[0].survey]
    assert 1 <= len(one) <= 4
    assert len({m.left for m in one}) == len(one)
    assert any(m.lost is not None and 0.5 < m.lost <= 1 for m in one)
    fallen = {t.key for t in of_stage(tmp_path, "regions") if t.status is Status.FAILS}
    assert fallen
    assert all(
        not m.kept and m.why == "outside the accuracy budget" for m in one if m.key in fallen
    )


@pytest.mark.parametrize("seconds", [12.0, 25.0, 40.0])
def test_surveys_take_a_quarter_of_the_time_and_end_in_it(seconds: float, tmp_path: Path) -> None:
    searched(replace(PLANTED, seconds=seconds), tmp_path)
    found = [one for one in surveys.read_journal(tmp_path) if isinstance(one, Survey)]
    assert sum(one.seconds for one in found) <= seconds / 4
    study = read_study(tmp_path)
    spent = sum(t.seconds for t in study.trials) + sum(one.seconds for one in found)
    assert spent <= seconds + 6


def test_kills_change_no_proposal_and_no_journal(tmp_path: Path) -> None:
    whole = searched(PLANTED, tmp_path / "whole")
    names = ("ledger.jsonl", surveys.NAME)
    wanted = {name: (tmp_path / "whole" / name).read_bytes() for name in names}
    every = whole["proposals"]
    around = next(at for at, text in enumerate(every, 1) if "exclude" in text)
    places = {around - 1, around}  # the survey, and the first mixture
    places |= {around + 1, *random.Random("adaptive").sample(range(1, len(every)), 2)}
    for after in sorted(places):
        for recorded in (False, True):
            folder = tmp_path / f"{after}-{recorded}"
            died = searched(PLANTED, folder, Kill(after, recorded))
            assert died["error"][0] == "Killed"
            again = searched(PLANTED, folder)
            assert again["proposals"] == every[after if recorded else after - 1 :], folder.name
            assert {name: (folder / name).read_bytes() for name in names} == wanted, folder.name
            assert (again["best"], again["finished"]) == (whole["best"], whole["finished"])


@pytest.mark.parametrize("where", ["^survey", "^regions"])
def test_an_interrupt_keeps_the_best_so_far(where: str, tmp_path: Path) -> None:
    rules = (*PLANTED.rules, on(where, does="is interrupted"))
    log = searched(replace(PLANTED, rules=rules), tmp_path)
    assert log["finished"] == "interrupted"
    assert log["best"]
    again = searched(PLANTED, tmp_path)
    assert again["finished"] in ("done", "time")
    assert mixtures(tmp_path)[0].left == ("fragile", "worthless")


def test_a_survey_takes_no_longer_than_it_is_worth() -> None:
    class Asked:
        journal = SimpleNamespace(surveys=[])

        def trial_key(self, plan: object) -> str:
            return str(plan)

        def __init__(self) -> None:
            self.seconds: list[float] = []

        def survey_regions(self, request: SurveyRequest, seconds: float) -> None:
            self.seconds.append(seconds)

    attempts, now = Asked(), view(left=100.0)
    regions = RegionSearch(None, attempts)  # type: ignore[arg-type]
    for worth in (7.0, math.inf):
        regions.measure_regions(SurveyRequest(now.trials[0].plan, "why", worth), now)
    assert attempts.seconds == [7.0, longest_s(now)]
    assert 7.0 < longest_s(now) < math.inf
