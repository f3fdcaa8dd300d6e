"""Tables and pictures of regions: folded, sorted, valid SVG and PNG of any figures."""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit import studies, surveys
from tests.unit.analysis.sensitivity.test_result import found

from ortune.core.errors import BadSettings
from ortune.core.section import Scatter, Table
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import Part
from ortune.reporting.charts.draw import render_svg, require_plot_suffix
from ortune.reporting.explanation.explain import Explanation, explain_study
from ortune.reporting.html import render_html, render_page
from ortune.reporting.precision import explained as telling
from ortune.reporting.precision import regions
from ortune.reporting.python.sensitivity import write_picture
from ortune.reporting.terminal import make_renderables
from ortune.search.experiment.surveys import RegionJournal
from ortune.search.mixed_precision.survey import SharedCost

HOSTILE = "<img src=x onerror=alert(1)> \"q\" 'a' & [bold]x[/bold]"


def shown(parts: tuple[Part, ...], width: int = 200) -> str:
    out = io.StringIO()
    for item in make_renderables(parts):
        Console(file=out, width=width).print(item)
    return out.getvalue()


def table(parts: tuple[Part, ...]) -> Table:
    return next(block for part in parts for block in part.blocks if isinstance(block, Table))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return surveys.study(tmp_path)


def of(study: Study, **asked: str) -> Explanation:
    return explain_study(study, (surveys.SURVEY,), **asked)


def test_regions_of_a_pattern_stand_in_one_row() -> None:
    rows = table(regions.build_sensitivity_parts(found())).rows
    assert [row[0] for row in rows] == ["slow and 2 others like it", "fragile", "odd"]
    assert rows[0][3:] == ("0.001 to 0.01", "about -10, at most -9", "5e-05 to saves nothing")
    slower = ("about 10, at most 11", "0.008")
    assert rows[1] == ("fragile", "MatMul", "2", "0.08 [0.072, 0.088]", *slower)
    assert rows[2][3:] == ("-", "-", "the worker died")
    every = table(regions.build_sensitivity_parts(found(), show_all=True)).rows
    assert [row[0] for row in every] == ["slow", "fragile", "alike", "plain", "odd"]


def test_what_was_not_reached_is_named() -> None:
    names = tuple(f"layer{k}" for k in range(10))
    told = shown(regions.build_sensitivity_parts(found(finished="time", not_reached=names)))
    assert "Not measured, out of time: layer0, " in told
    assert "layer7 and 2 more. Give more --time." in told
    assert "from the cache" in shown(regions.build_sensitivity_parts(found(kept=True)))


def test_neighbours_that_lose_the_same_are_named_where_it_is_much() -> None:
    shared = (SharedCost("fragile", "plain", 0.05), SharedCost("plain", "alike", 0.001))
    told = " ".join(shown(regions.build_sensitivity_parts(found(shared=shared))).split())
    assert "share a loss: fragile and plain 0.05. Leaving only one" in told
    for pairs in ((), shared[1:]):
        assert "both together once" not in shown(
            regions.build_sensitivity_parts(found(shared=pairs))
        )


def test_what_the_step_leaves_itself_is_said() -> None:
    rows = table(
        regions.build_sensitivity_parts(found(regions=(surveys.cost("head", 0.0, 0.0),)))
    ).rows
    assert rows[0][-1] == "not changed by the step"


@pytest.mark.parametrize(("by", "said"), [("node", "5 nodes"), ("op", "5 operators")])
def test_what_was_taken_at_a_time_is_said(by: str, said: str) -> None:
    assert said in shown(regions.build_sensitivity_parts(found(by=by)))


@pytest.mark.parametrize("width", [40, 100])
def test_a_run_is_told_at_any_width(study: Study, width: int) -> None:
    told = " ".join(shown(telling.build_explanation_parts(of(study)), width).split())
    assert "left in float" in told
    assert "From the original to the" in told
    assert "no time left" in told


def test_a_node_is_told_in_words(study: Study) -> None:
    told = " ".join(shown(telling.build_explanation_parts(of(study, node="fragile"))).split())
    assert "In the winner (plan 2, int8-static, mixed) it computes in float32." in told
    assert "region fragile, 2 nodes (MatMul), accuracy cost 0.08 [0.072, 0.088] (cosine)" in told
    assert "Plans that leave it out by name" in told
    gone = explain_study(study, (surveys.SURVEY,), node="alike")
    assert "no node of this name" not in shown(telling.build_explanation_parts(gone))


def test_a_plan_is_told_whole(study: Study) -> None:
    told = " ".join(shown(telling.build_explanation_parts(of(study, plan="1"))).split())
    assert "Plan 1: int8 static" in told
    assert "outside the accuracy budget" in told
    assert surveys.WHOLE in told
    mixed = shown(telling.build_explanation_parts(of(study, plan="2")))
    assert "It leaves 1 of 3 regions in float: fragile." in mixed


def test_a_report_draws_what_the_journal_has(study: Study) -> None:
    root = studies.write_run(study)
    assert not any(part.name.startswith("precision") for part in build_report_parts(study))
    RegionJournal(root).add(replace(surveys.SURVEY, regions=(*surveys.REGIONS, LONG)))
    part = next(part for part in build_report_parts(study) if part.name == "precision-1")
    assert any(isinstance(block, Scatter) for block in part.blocks)
    text = render_html(study)
    assert "Precision by region: int8 static" in text
    assert "in float in the winner" in text
    assert "<img src=x" not in text


LONG = replace(surveys.cost(HOSTILE, 0.01, 0.05), pattern="cc")


def test_a_journal_that_cannot_be_read_is_told_in_the_report(study: Study) -> None:
    root = studies.write_run(study)
    (root / "regions.jsonl").write_text("{]\n")
    part = next(part for part in build_report_parts(study) if part.name == "precision")
    assert "Regions are left out" in str(part.blocks)


ODD = (
    *surveys.REGIONS,
    surveys.FAILED,
    LONG,
    replace(surveys.REGIONS[0], region="wide", accuracy_cost=Interval(0.1, -math.inf, math.inf)),
    replace(surveys.REGIONS[0], region="", time_gained=Interval(0.0, 0.0, 0.0)),
)


def test_any_figures_are_drawn() -> None:
    plot = regions.draw_sensitivity(found(regions=ODD))
    assert len(plot.points) == len(ODD) - 1
    ElementTree.fromstring(render_svg(plot))
    page = render_page("t", regions.build_sensitivity_parts(found(regions=ODD)))
    assert page.count('class="chart"') == 1
    ElementTree.fromstring(render_svg(regions.draw_sensitivity(found(regions=()))))


def test_names_are_told_without_what_all_begin_with() -> None:
    same = [replace(one, region=f"/model/blocks/{one.region}") for one in surveys.REGIONS]
    plot = regions.draw_regions([(one, regions.OTHER) for one in same], "")
    assert [point.label for point in plot.points] == ["fragile", "plain", "alike"]
    assert plot.named[0] == 0


@pytest.mark.parametrize("name", ["plot.svg", "plot.png", "plot.html"])
def test_a_picture_is_a_file(tmp_path: Path, name: str) -> None:
    require_plot_suffix(tmp_path / name)
    path = write_picture(found(), tmp_path / name)
    begins = {".svg": b"<svg", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}
    assert path.read_bytes().startswith(begins[path.suffix])


def test_another_ending_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"plot\.gif"):
        require_plot_suffix(Path("plot.gif"))
