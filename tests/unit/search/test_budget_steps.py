"""One search answers every step of a budget: the fastest plan of each, with its proof."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.search.experiment.scripted import Script
from tests.unit.search.given import PLANS, backends, ratios, seeing

from ortune.analysis.verification.requests import Verify
from ortune.cli.optimize import serialize_study
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings
from ortune.core.judgement import choose_step, judge_steps
from ortune.core.section import Table
from ortune.core.study import Study
from ortune.core.trial import Status, Verdict
from ortune.reporting.blocks import gather_parts

JOB = replace(studies.job(names=()), budget=Budget.parse("cosine>=0.999|0.99"))
# Cosines of 0.9999995, 0.995 and 0.71.
LOUDER = {plan.backend: times for plan, times in zip(PLANS, (1.0, 100.0, 1000.0), strict=False)}


@pytest.fixture
def study(run: Callable[..., Study]) -> Study:
    script = Script(ratios=ratios(0.8, 0.4, 0.3), louder=LOUDER)
    return run(script, PLANS[:3], known={"job": JOB})


def test_each_step_gets_its_fastest_plan_with_its_verdict(study: Study) -> None:
    strict, loose = judge_steps(study)
    assert [str(step.budget) for step in judge_steps(study)] == ["cosine>=0.999", "cosine>=0.99"]
    assert [step.best.plan for step in judge_steps(study)] == PLANS[:2]
    assert strict is study, "the strictest is handed out"
    verdicts = [step.best.score and step.best.score.verdict for step in judge_steps(study)]
    assert verdicts == [Verdict.PROVED, Verdict.PROVED]
    assert study.find(loose.best.key) is not loose.best
    assert study.find(loose.best.key).status is Status.FAILS  # type: ignore[union-attr]
    assert loose.best.status is Status.OK and "as fast" in loose.best.why


def test_no_plan_is_measured_for_a_second_step_again(study: Study) -> None:
    assert backends(study, "search") == [1, 2, 3]
    assert sorted(backends(study, "final")) == [1, 2]


def test_a_plan_is_taken_by_the_strictest_step_that_it_keeps(study: Study) -> None:
    strict, loose = judge_steps(study)
    assert choose_step(study, strict.best.key) is study
    assert choose_step(study, loose.best.key).budget == loose.budget
    assert choose_step(study, "unknown") is study


def test_each_step_has_its_part_of_the_time(run: Callable[..., Study]) -> None:
    seen: list[float] = []
    run(Script(), [], policy=seeing(seen), known={"job": JOB})
    assert seen[0] == 50.0 and seen[-1] == 100.0


def test_the_error_of_a_proof_is_that_of_all_finalists_of_all_steps(study: Study) -> None:
    scores = [trial.score for trial in study.final]
    assert all(score is not None and len(score.looser) == 1 for score in scores)
    assert all(score and score.looser[0].error == score.error for score in scores)


def test_the_steps_are_shown(study: Study, tmp_path: Any) -> None:
    (part,) = [part for part in gather_parts(study, terminal=True) if part.name == "budgets"]
    (table,) = [block for block in part.blocks if isinstance(block, Table)]
    assert [row[0] for row in table.rows] == ["cosine>=0.999", "cosine>=0.99"]
    loose = judge_steps(study)[1].best
    assert any(f"--plan {loose.key[:8]}" in str(block) for block in part.blocks)
    steps: Any = serialize_study(study, tmp_path / "report.html")["steps"]
    assert [step["key"] for step in steps] == [study.best.key, loose.key]


def test_one_budget_has_one_step(run: Callable[..., Study]) -> None:
    study = run(Script(), PLANS[:1])
    assert judge_steps(study) == (study,)
    assert not [part for part in gather_parts(study) if part.name == "budgets"]


def test_a_verb_that_gives_one_answer_takes_one_limit(tmp_path: Any) -> None:
    with pytest.raises(BadSettings, match="lists several limits") as caught:
        Verify("a.onnx", "b.onnx", budget="cosine>=0.9|0.8")
    assert caught.value.fix == "give one of them: cosine>=0.9"
