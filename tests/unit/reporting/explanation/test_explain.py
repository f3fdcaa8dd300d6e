"""What a run says of its winner, its plans, its regions and its nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies, surveys

from ortune.core.errors import BadSettings
from ortune.core.result import as_json
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.reporting.explanation.explain import NO_SURVEY, Explanation, explain_study
from ortune.search.mixed_precision.survey import MixtureOutcome


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return surveys.study(tmp_path)


def of(study: Study, **asked: str) -> Explanation:
    return explain_study(study, (surveys.SURVEY,), **asked)


def test_plans_are_numbered_as_they_were_tried(study: Study) -> None:
    found = of(study)
    assert [one.number for one in found.plans] == [0, 1, 2, 3]
    assert [one.outcome for one in found.plans[:2]] == [
        "the original",
        "outside the accuracy budget",
    ]
    assert found.winner.number == 2
    assert found.winner.proposed == "regions: 1 of 3 in float: fragile"
    assert [one.part for one in found.winner.trials] == ["search", "final"]
    assert found.winner.ratio is not None
    assert found.winner.ratio.value == 0.51


def test_the_way_says_why_each_change_was_tried(study: Study) -> None:
    assert [(one.what, one.number, one.why) for one in of(study).way] == [
        ("baseline", 0, ""),
        ("quantization", 2, "regions: 1 of 3 in float: fragile"),
    ]


def test_a_mixture_is_expected_to_cost_what_its_regions_do(study: Study) -> None:
    held = of(study).winner.mixture
    assert held is not None
    assert held.given_back == ("fragile",)
    assert held.regions == 3
    assert held.expected_cost == pytest.approx(0.003)
    assert held.expected_gain == pytest.approx(0.4)
    assert held.measured_gain == pytest.approx(0.49)


def test_the_journal_says_what_was_expected_of_a_mixture(study: Study) -> None:
    line = MixtureOutcome(
        *(surveys.WHOLE, surveys.MIXED, surveys.plan("fragile"), ("fragile",), 3, 0.52, 0.8),
        *(Interval(0.5, 0.49, 0.52), 0.6, True, "the best so far"),
    )
    held = explain_study(study, (surveys.SURVEY, line)).winner.mixture
    assert held is not None
    assert (held.expected_ratio, held.expected_lost, held.lost) == (0.52, 0.8, 0.6)
    assert (held.kept, held.why) == (True, "the best so far")
    assert of(study).winner.mixture.kept is None  # type: ignore[union-attr]


def test_regions_that_the_plan_leaves_itself_are_not_given_back(study: Study) -> None:
    own = surveys.cost("fragile", 0.0, 0.0, "ff")
    survey = replace(surveys.SURVEY, regions=(own, *surveys.REGIONS[1:]))
    found = explain_study(study, (survey,))
    assert found.winner.mixture is None
    assert found.surveys[0].regions[0].became == "not changed by int8-static"


def test_the_whole_plan_is_no_mixture(study: Study) -> None:
    assert of(study).plans[1].mixture is None
    assert of(study).plans[0].mixture is None


def test_each_region_says_what_became_of_it(study: Study) -> None:
    told = {one.cost.region: one for one in of(study).surveys[0].regions}
    assert told["fragile"].winner == "float32"
    assert told["fragile"].left_in == (2,)
    assert told["fragile"].why == (
        "left in float: alone int8-static costs 0.08 of accuracy and saves 10 % of the time"
    )
    assert told["plain"].winner == "int8"
    assert told["plain"].why == (
        "kept in int8-static: alone int8-static costs 0.001 of accuracy and saves 20 % of the time"
    )


def test_a_region_that_could_not_be_measured_says_so(study: Study) -> None:
    survey = replace(surveys.SURVEY, regions=(*surveys.REGIONS, surveys.FAILED))
    found = explain_study(study, (survey,))
    assert found.surveys[0].regions[-1].why == "not measured: the worker died"
    assert found.winner.mixture is not None
    assert found.winner.mixture.expected_cost == pytest.approx(0.003)


def test_a_survey_of_another_precision_than_the_winners(study: Study) -> None:
    elsewhere = replace(surveys.plan(), backend=studies.Cpu(threads=2))
    found = explain_study(study, (replace(surveys.SURVEY, plan=elsewhere),))
    assert {one.winner for one in found.surveys[0].regions} == {""}
    assert found.surveys[0].regions[0].became == "the winner has another precision"
    assert found.winner.mixture is None


def test_a_node_is_told_whole(study: Study) -> None:
    node = of(study, node="fragile_relu").node
    assert node is not None
    assert (node.op, node.winner, node.rounded) == ("Relu", "float32", False)
    assert node.regions[surveys.WHOLE].cost.region == "fragile"
    assert dict(node.left_out) == {}
    assert dict(of(study, node="fragile").node.left_out) == {2: "int8-static", 3: "int8-static"}  # type: ignore[union-attr]
    assert "left in float: those that are excluded" in node.notes[0]


def test_a_node_that_is_not_there_has_near_names(study: Study) -> None:
    with pytest.raises(BadSettings, match="no node 'fragil'") as caught:
        of(study, node="fragil")
    assert "fragile, fragile_relu" in caught.value.fix


def test_models_that_are_gone_are_told(study: Study) -> None:
    (Path(study.models[""])).unlink()
    found = of(study, node="fragile")
    assert found.node is not None
    assert found.node.op == ""
    assert found.node.winner == "float32"
    assert found.notes[0].startswith("its nodes are not known: ")


@pytest.mark.parametrize("text", ["2", "int8-static, mixed @ cpu", "f00df00d", "winner"])
def test_a_plan_is_meant_by_number_name_or_key(study: Study, text: str) -> None:
    assert next(one.number for one in of(study, plan=text).asked) == 2


def test_a_name_may_mean_several(study: Study) -> None:
    assert [one.number for one in of(study, plan="int8-static, mixed").asked] == [2, 3]


@pytest.mark.parametrize("text", ["99", "int9", "", "f0", "9" * 400])
def test_a_plan_that_is_not_there_has_near_names(study: Study, text: str) -> None:
    with pytest.raises(BadSettings, match="no plan") as caught:
        of(study, plan=text)
    assert "int8-static" in caught.value.fix
    assert len(str(caught.value).splitlines()) == 2


def test_without_a_survey_that_is_told(study: Study) -> None:
    found = explain_study(study, ())
    assert found.surveys == ()
    assert found.notes == (f"{NO_SURVEY} in this run",)
    assert all(one.mixture is None for one in found.plans)


def test_everything_becomes_json(study: Study) -> None:
    told = json.loads(as_json(of(study, node="plain")))
    row = told["surveys"][0]["regions"][0]["cost"]
    assert {"pattern", "nodes", "accuracy_cost", "time_gained"} <= row.keys()
    assert told["node"]["regions"][surveys.WHOLE]["winner"] == "int8"
    (untried,) = told["left_out"]
    assert (untried["plan"], untried["why"]) == ("fp16 @ cpu", "no time left")
    assert len(of(study).records()) == 4


def test_a_step_that_takes_some_nodes_alone_takes_no_other(study: Study) -> None:
    taken = {name: of(study, node=name).node.taken for name in ("fragile", "fragile_relu")}  # type: ignore[union-attr]
    assert dict(taken["fragile"]) == {1: "int8-static", 3: "int8-weights"}
    assert dict(taken["fragile_relu"]) == dict.fromkeys((1, 2, 3), "int8-static")
