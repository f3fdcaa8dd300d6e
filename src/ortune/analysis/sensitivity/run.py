"""Measure what each region costs and saves alone, or return what an earlier call measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.analysis.sensitivity import store
from ortune.analysis.sensitivity.requests import SensitivityRequest, budget_of
from ortune.analysis.sensitivity.result import Sensitivity, again, ordered
from ortune.core import reading
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadModel, BadSettings, Refused
from ortune.core.event import TimeLeft, noting
from ortune.core.plugins import catalog, codec, sources
from ortune.core.plugins.spelling import parse
from ortune.core.step import Recipe, Step
from ortune.core.trial import Plan
from ortune.experiment import measure
from ortune.experiment.context import Context
from ortune.experiment.keys import job_key
from ortune.experiment.ledger import read_header
from ortune.experiment.prepare import prepare
from ortune.experiment.request import ExperimentRequest
from ortune.experiment.surveys.progress import SurveyProgress
from ortune.experiment.surveys.run import survey
from ortune.measurement.capabilities import demand
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import ready
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file
from ortune.quantization.roles import deciding
from ortune.recipe.built import steps_key
from ortune.recipe.space import clean
from ortune.regions.survey import RegionCost, Survey, unchanged

LATE = "no time was left"
"""How the error of a region begins that was not reached."""
_CODE = "ortune.experiment.surveys.run"


def run(asked: SensitivityRequest) -> Sensitivity:
    """Survey one plan's regions."""
    source, steps = asked.source, _steps(asked.recipe)
    backend = parse(Backend, asked.backends)
    offered = demand(backend)
    notes: list[str] = []
    with TemporaryDirectory(prefix="ortune-") as name:
        root = Path(name)
        request = ExperimentRequest(
            asked.model,
            data=source,
            labels=asked.labels,
            calibration=asked.calibration,
            sequence=asked.sequence,
            state=asked.state,
            budget=asked.budget if asked.metric is None else budget_of(asked.metric),
            baseline=backend,
            custom_ops=asked.custom_ops,
            memory_limit=asked.memory_limit,
            time=asked.seconds,
        )
        context = prepare(request, root, noting(notes, asked.sink))
        header = read_header(root)
        assert header is not None
        context = replace(context, by_operator=header.by_operator)
        plan = _plan(Path(asked.model), steps, backend, offered)
        key = _key(context, plan, asked)
        known = None if asked.fresh else store.find(key)
        if known is not None:
            return again(known, str(asked.model))
        asked.sink(TimeLeft(asked.seconds))
        found = _result(asked, context, plan, _surveyed(asked, context, plan), notes)
    store.keep(key, found)
    return found


def _steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Read the steps.

    Raises:
        UnknownPlugin: There is no such step.
        BadSettings: None of them decides a precision.
    """
    steps = tuple(map(reading.step, texts))
    if deciding(steps) is None:
        given = ", ".join(texts) or "nothing"
        raise BadSettings(
            f"--recipe {given}: no step of it decides a precision",
            fix="end it in a quantizer, such as int8-static or int8-weights",
        )
    return steps


def _plan(model: Path, steps: Sequence[Step], backend: Backend, offered: Capabilities) -> Plan:
    """Put the automatic rewrites before the steps, as a search does."""
    first = clean(model_facts.facts(file.load(model)), backend, offered).steps
    at = deciding(steps)
    assert at is not None
    return Plan(Recipe(str(steps[at]), (*first, *steps)), backend)


def _key(context: Context, plan: Plan, asked: SensitivityRequest) -> str:
    """Digest all that the figures depend on; 32 hex digits and more of them than a file needs."""
    return codec.digest(
        [
            job_key(context.job),
            steps_key(plan.recipe.steps),
            catalog.source_digest(plan.backend),
            sources.digest(_CODE, lambda name: []),
            asked.by,
            str(asked.sequence),
            asked.state,
            asked.seconds,
        ]
    )


def _surveyed(asked: SensitivityRequest, context: Context, plan: Plan) -> Survey:
    """Run the survey beside the original.

    Raises:
        BadModel: The original stops running.
        Refused: The plan's regions cannot be measured at all.
    """
    try:
        with measure.start(context, context.models, context.job.baseline, "baseline") as live:
            ready(live)
            found = survey(context, plan, asked.seconds, asked.sink, live, by=asked.by)
    except WorkerFailed as error:
        raise error.as_bad_model(Path(asked.model), plan.backend) from None
    if found.error:
        raise Refused(
            f"{plan.recipe.name} on {plan.backend}: {found.error}",
            fix="try another --recipe or --on; `ortune apply` shows what the steps do",
        )
    if not found.regions:
        raise BadModel(
            f"{Path(asked.model).name} has no layer with weights",
            fix="nothing of it can change precision",
        )
    return found


def reached(one: RegionCost, progress: SurveyProgress) -> bool:
    """Whether there was time for a region; what its operators take stands for its gain if not."""
    if one.error:
        return not one.error.startswith(LATE)
    return unchanged(one) or one.pattern in progress.gains


def known(one: RegionCost) -> bool:
    """Whether anything of a region is known: its cost may be where its time is not."""
    return math.isfinite(one.accuracy_cost.value)


def _result(
    asked: SensitivityRequest, context: Context, plan: Plan, found: Survey, notes: Sequence[str]
) -> Sensitivity:
    name = found.key if asked.by == "region" else f"{found.key}-{asked.by}"
    progress = SurveyProgress(context.root, name)
    begun = progress.begun
    late = [one for one in found.regions if not reached(one, progress)]
    at = deciding(plan.recipe.steps)
    assert at is not None
    return Sensitivity(
        model=str(asked.model),
        model_digest=file.digest(Path(asked.model)),
        by=asked.by,
        recipe=tuple(map(str, plan.recipe.steps)),
        precision=str(plan.recipe.steps[at]),
        on=str(plan.backend),
        budget=str(context.budget),
        budget_rule=context.job.budget_rule,
        unit=found.unit,
        samples=len(begun.drawn.places) if begun is not None else 0,
        regions=ordered([one for one in found.regions if one not in late or known(one)]),
        whole_cost=found.whole_cost,
        not_reached=tuple(one.region for one in late),
        finished="time" if late else "done",
        seconds=found.seconds,
        machine=context.job.machine,
        versions=context.job.versions,
        shared=tuple(sorted(found.shared, key=lambda one: -one.cost)),
        notes=tuple(notes),
    )
