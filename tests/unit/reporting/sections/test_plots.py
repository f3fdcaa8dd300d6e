"""The plots of a report show what the ledger holds, and no more than is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal
from ortune.core.section import Block, Chart, Intervals, Lines, Scatter, Table
from ortune.core.step import Recipe
from ortune.core.study import Study
from ortune.core.trial import Block as Turn
from ortune.core.trial import Burst, Interval, Pair, Plan, Trial
from ortune.reporting.sections.front import FrontSection
from ortune.reporting.sections.plans import PlansSection
from ortune.reporting.sections.runs import RunsSection
from ortune.reporting.sections.search import SearchSection


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return studies.study(tmp_path)


def with_trials(study: Study, *more: Trial) -> Study:
    return replace(study, trials=(*study.trials[:-1], *more, study.trials[-1]))


def plan(name: str, ratio: float) -> Trial:
    return studies.trial(f"{name:0<16}"[:16], Plan(Recipe(name), Cpu()), ratio)


def rows(study: Study) -> dict[str, tuple[str, str, str]]:
    plot = next(b for b in PlansSection().blocks(study) if isinstance(b, Intervals))
    return {one.label: (one.tone, one.figure, one.note) for one in plot.rows}


def one(kind: type[Block], blocks: object) -> Block:
    assert isinstance(blocks, list)
    return next(block for block in blocks if isinstance(block, kind))


def test_every_plan_is_an_interval_the_winner_first_and_what_lost_last(study: Study) -> None:
    lone = replace(plan("lone", 0.6), effort="screen", ratio=Interval(0.6, 0.0, math.inf))
    waited = replace(lone, key="waited" * 3)
    assert waited.measurement is not None
    (first, *_) = waited.measurement.pairs
    single = replace(waited.measurement, pairs=(Pair(first.blocks[:1]),))
    lone = replace(lone, measurement=single)
    (row,) = [r for r in rows(with_trials(study, waited)).items() if r[0] == "lone"]
    assert row[1] == ("open", "about 1.67x", "waited for a CPU")
    cut = replace(plan("cut", 1.9), stopped="after its first burst")
    found = rows(with_trials(study, plan("once", 0.8), lone, cut))
    assert list(found) == [
        "optimized graph · 1 thread",
        "once",
        "lone",
        "original",
        "fp16",
        "int8 static",
        "cut",
        "int8 dynamic",
    ]
    assert found["fp16"] == ("lose", "2.50x [2.38-2.56]", "outside the accuracy budget")
    assert found["optimized graph · 1 thread"][::2] == ("win", "winner, accuracy proved")
    assert found["lone"] == ("rough", "about 1.67x", "timed for 0.0 s only")
    assert found["once"] == ("open", "1.25x [1.22-1.27]", "")
    assert found["original"][:2] == ("original", "1")
    assert found["cut"][::2] == ("lose", "stopped early")
    assert found["int8 dynamic"] == ("lose", "-", "failed")


def test_a_finalist_that_did_not_win_is_marked(study: Study) -> None:
    other = replace(plan("other", 0.7), part="final")
    assert rows(with_trials(study, other))["other"][0] == ""


def test_of_very_many_plans_the_best_are_drawn_with_finalists_and_the_original(
    study: Study,
) -> None:
    slow = replace(plan("slow", 9.0), part="final")
    many = (plan(f"p{n:02d}", 0.7 + n / 1000) for n in range(60))
    found = rows(with_trials(study, slow, *many))
    assert len(found) == 24 and {"slow", "original", "p00"} <= set(found)


def test_nothing_is_drawn_where_nothing_was_tried(study: Study) -> None:
    alone = replace(study, trials=study.trials[:1])
    for section in (PlansSection, RunsSection, SearchSection, FrontSection):
        assert not list(section().blocks(alone))


def test_trials_of_devices_that_worked_at_once_begin_side_by_side(study: Study) -> None:
    devices = (("a", 5.0), ("b", 7.0), ("a", 4.0), ("", 2.0))
    trials = [replace(plan(f"p{n}", 0.8), device=d, seconds=s) for n, (d, s) in enumerate(devices)]
    alone = replace(study, trials=(replace(study.trials[0], seconds=3.0), *trials))
    chart = one(Chart, list(SearchSection().blocks(alone)))
    assert isinstance(chart, Chart)
    spans = [row[1:3] for row in chart.table.rows][1:5]
    assert spans == [("3", "8"), ("3", "10"), ("8", "12"), ("12", "14")]


def timed(study: Study, scale: float) -> Study:
    """Give the winner a hundred runs of 1.00 to 1.99 ms, at `scale` of the original's."""
    ns = tuple(1_000_000 + 10_000 * n for n in range(100))
    waited = (0.0,) * len(ns)
    turn = Turn(Burst(ns, waited), Burst(tuple(int(n * scale) for n in ns), waited))
    best = study.trials[-1]
    assert best.measurement is not None
    measured = replace(best.measurement, pairs=(Pair((turn,)),))
    return replace(study, trials=(*study.trials[:-1], replace(best, measurement=measured)))


@pytest.mark.parametrize("scale", [0.5, 0.99, 0.01])
def test_the_curves_hold_the_runs_behind_the_ratio(study: Study, scale: float) -> None:
    made = list(RunsSection().blocks(timed(study, scale)))
    chart = one(Lines, made)
    assert isinstance(chart, Lines)
    for line, fastest in zip(chart.lines, (1.0, scale), strict=True):
        assert line.points[0] == pytest.approx((fastest, 1.0))
        assert line.points[-1] == pytest.approx((1.99 * fastest, 100.0), rel=0.01)
    table = one(Table, made)
    assert isinstance(table, Table)
    original, winner = table.rows
    assert original[:3] == ("original", "100", "1.495") and winner[1] == "100"


@pytest.mark.parametrize("last", [0.9, math.nan, math.inf])
def test_runs_that_waited_for_a_cpu_have_another_colour(study: Study, last: float) -> None:
    """A share that is no number stands in a forged run alone, and counts as the worst."""
    quiet = timed(study, 0.5)
    best = quiet.trials[-1]
    assert best.measurement is not None
    ((turn,),) = (pair.blocks for pair in best.measurement.pairs)
    waited = replace(turn.baseline, waited=(0.0,) * 60 + (0.1,) * 30 + (last,) * 10)
    measured = replace(best.measurement, pairs=(Pair((replace(turn, baseline=waited),)),))
    busy = replace(quiet, trials=(*quiet.trials[:-1], replace(best, measurement=measured)))
    chart = one(Chart, list(RunsSection().blocks(busy)))
    assert isinstance(chart, Chart)
    assert [count for _, count in chart.table.rows] == ["60", "30", "10"]


def test_the_time_line_holds_every_trial_one_after_the_other(study: Study) -> None:
    chart = one(Chart, list(SearchSection().blocks(study)))
    assert isinstance(chart, Chart)
    rows = chart.spec["data"]["values"]
    assert [row["end"] - row["start"] for row in rows] == pytest.approx(
        [trial.seconds for trial in study.trials]
    )
    assert [row["start"] for row in rows[1:]] == pytest.approx([row["end"] for row in rows[:-1]])
    assert {row["tone"] for row in rows} >= {"win", "lose", "original"}


def test_scores_and_speeds_have_error_bars(study: Study) -> None:
    plot = one(Scatter, list(FrontSection().blocks(study)))
    assert isinstance(plot, Scatter)
    points = {point.label: point for point in plot.points}
    fp16 = points["fp16"]
    assert fp16.x_span == pytest.approx((1 / 0.42, 1 / 0.39))
    assert fp16.y == pytest.approx(-0.09), "less the original's on the same samples"
    assert fp16.y_span == pytest.approx((-0.0902, 0.0)), "to the bound that its verdict rests on"
    assert points["original"].x_span is None and points["original"].y_span is None


def test_where_size_is_preferred_it_is_what_stands_against_speed(study: Study) -> None:
    wanted = replace(study.job, wanted=Goal("size"))
    plot = one(Scatter, list(FrontSection().blocks(studies.changed(study, job=wanted))))
    assert isinstance(plot, Scatter)
    assert {point.y for point in plot.points} == {5.4, 1.4}
