"""Which plans follow from the trials so far, and which of them cannot run."""

from dataclasses import replace

import pytest
from tests.unit.search.test_adaptive import BF16, CPU, OPENVINO, SPACE, trial, view

from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal, Status, Trial
from ortune.search.expectation.candidates import (
    SETTINGS,
    Candidate,
    find_obstacle,
    list_candidates,
)

INT8 = Recipe("int8", (parse_plugin(Quantizer, "int8-weights"),))
OTHER = replace(OPENVINO, threads=2)


def ran(backend: Backend) -> Trial:
    return trial(Proposal(Plan(INT8, backend), "search"), 0.5)


def died(backend: Backend) -> Trial:
    return replace(ran(backend), status=Status.FAILED, ratio=None, scores=(), why="signal 8")


def test_what_died_dies_again_under_the_hint() -> None:
    assert "failed there" in find_obstacle(Plan(INT8, OTHER), [died(OPENVINO)])
    assert not find_obstacle(Plan(INT8, BF16), [died(OPENVINO)])
    assert not find_obstacle(Plan(INT8, CPU), [died(OPENVINO)])


@pytest.mark.parametrize("order", [1, -1])
def test_a_setting_that_kills_what_runs_without_it_condemns_no_other(order: int) -> None:
    trials = [ran(OPENVINO), died(OTHER)][::order]
    assert not find_obstacle(Plan(INT8, replace(OPENVINO, threads=3)), trials)


def test_what_is_too_large_is_so_everywhere() -> None:
    over = "95.4 MiB is above --max-size 1 MiB"
    large = replace(ran(OPENVINO), status=Status.TOO_LARGE, ratio=None, scores=(), why=over)
    assert find_obstacle(Plan(INT8, CPU), [ran(CPU), large]) == over


def test_what_fails_for_all_models_of_a_job_is_tried_for_each() -> None:
    space = replace(SPACE, models=("encoder", "decoder"))
    all_models = Plan(INT8, CPU)
    fails = trial(Proposal(all_models, "search"), 0.5, lost=3.0)

    def listed(*trials: Trial) -> dict[str, Candidate]:
        known = view(trials, space=space)
        return {
            one.plan.recipe.name: one
            for one in list_candidates(known)
            if one.plan.recipe.only and one.stage != SETTINGS
        }

    single = listed(fails)
    assert set(single) == {"int8 for encoder", "int8 for decoder"}
    assert not listed(trial(Proposal(all_models, "search"), 0.5)), "it keeps the budget as it is"
    encoder, decoder = (single[f"int8 for {name}"].plan for name in ("encoder", "decoder"))
    assert encoder.recipe.select_for("encoder").steps == INT8.steps
    assert encoder.recipe.select_for("decoder").steps == ()
    both = [trial(Proposal(plan, "rescue"), 0.7) for plan in (encoder, decoder)]
    joined = listed(fails, *both)["int8 for encoder + int8 for decoder"].plan
    assert all(joined.recipe.select_for(name).steps == INT8.steps for name in space.models)
    again = [both[0], trial(Proposal(decoder, "rescue"), 0.7, lost=3.0)]
    assert not any(" + " in name for name in listed(fails, *again)), "one of them fails"
    lone = [one for one in list_candidates(view([fails])) if one.plan.recipe.only]
    assert not lone, "there is one model"
