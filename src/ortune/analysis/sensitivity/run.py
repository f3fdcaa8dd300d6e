"""Measure what each region costs and saves alone, or return what an earlier call measured.

Results are kept a file each in the user's cache folder, named by all that they depend on. None is
ever needed: what cannot be read or written is measured again, or not kept, and whatever lies there
is checked before it is used.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.core import reading
from ortune.core.atomic_write import remove_path, write_text
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, Refused
from ortune.core.event import Note, TimeLeft, collect_notes
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins import catalog, codec, sources, stored
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.result import TableResult
from ortune.core.roles import find_deciding_step
from ortune.core.step import Recipe, Step
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Plan
from ortune.core.wording import format_duration
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.job import MAIN
from ortune.measurement.process import require_backend, translate_failures
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment, job_key
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.surveys import LATE, SurveyProgress, survey_plan
from ortune.search.mixed_precision.survey import RegionCost, SharedCost, Survey, cost_per_time
from ortune.search.recipe.built import steps_key
from ortune.search.recipe.space import make_clean_recipe

_CODE = "ortune.search.experiment.surveys"
_LARGEST = 16 * 1024 * 1024
"""Bytes of a kept result that is read."""
_FILES = 256
"""Results that are kept; the one written longest ago goes first."""


@dataclass(frozen=True, repr=False)
class Sensitivity(TableResult):
    """What every region costs and saves alone.

    Attributes:
        by: What was taken at a time: ``region``, ``node`` or ``op``.
        budget_rule: How it was derived; empty when it was given.
        regions: What is worth giving back first.
        shared: What neighbours lose each alone and together once, the most first.
        not_reached: Regions that the time did not suffice for.
        finished: ``done``, or ``time``.
        kept: The figures are from an earlier call.
    """

    headline = ("model", "precision", "on", "by", "whole_cost", "unit", "finished")
    table = "regions"

    model: str
    model_digest: str
    by: str
    recipe: tuple[str, ...]
    precision: str
    on: str
    budget: str
    budget_rule: str
    unit: str
    samples: int
    regions: tuple[RegionCost, ...]
    whole_cost: float
    not_reached: tuple[str, ...]
    finished: str
    seconds: float
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[SharedCost, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()

    def result(self) -> dict[str, Any]:
        """Return what ``--json`` shows; see ``docs/cli.md``."""
        shown = {k: codec.encode(v) for k, v in vars(self).items() if k != "regions"}
        ratios = [cost_per_time(region) for region in self.regions]
        rows = [
            {**codec.encode(region), "cost_per_time": ratio if math.isfinite(ratio) else None}
            for region, ratio in zip(self.regions, ratios, strict=True)
        ]
        return {**shown, "regions": rows}


def sort_regions(regions: Sequence[RegionCost]) -> tuple[RegionCost, ...]:
    """Return regions with what is worth giving back first; of equal ones the costlier first."""
    return tuple(
        sorted(regions, key=lambda region: (-cost_per_time(region), -region.accuracy_cost.value))
    )


def run(request: SensitivityRequest) -> Sensitivity:
    """Survey one plan's regions."""
    source, steps = request.source, _read_steps(request.steps)
    backend = parse_plugin(Backend, request.backends)
    offered = require_backend(backend)
    notes: list[str] = []
    with open_temporary_folder() as root:
        experiment = Experiment(
            models={MAIN: Path(request.model)},
            data=source,
            labels=request.labels,
            calibration=request.calibration,
            sequence=request.sequence,
            state=tuple(request.state),
            budget=request.read_budget(),
            baseline=backend,
            memory_limit=request.memory_limit,
            time=request.time,
        )
        context = prepare_context(experiment, root, collect_notes(notes, request.sink))
        # Put the automatic rewrites before the steps, as a search does.
        model = Path(request.model)
        first = make_clean_recipe(model_facts.read_facts(file.load(model)), backend, offered).steps
        at = find_deciding_step(steps)
        assert at is not None
        plan = Plan(Recipe(str(steps[at]), (*first, *steps)), context.job.baseline)
        # Digest all that the figures depend on; 32 hex digits and more of them than a file needs.
        key = codec.digest(
            [
                job_key(context.job),
                steps_key(plan.recipe.steps),
                catalog.source_digest(plan.backend),
                sources.digest_module(_CODE, lambda name: []),
                request.by,
                str(request.sequence),
                request.state,
                request.time,
            ]
        )
        kept = None if request.fresh else find_result(key)
        if kept is not None:
            return replace(kept, kept=True, model=str(request.model))
        request.sink(Note(f"--time: {format_duration(request.time)}"))
        request.sink(TimeLeft(request.time))
        # Run the survey beside the original.
        with (
            translate_failures(f"{Path(request.model)} does not run on {plan.backend}"),
            measure.start_worker(
                context, context.models, context.job.baseline, "baseline"
            ) as live,
        ):
            wait_until_ready(live)
            survey_result = survey_plan(
                context, plan, request.time, request.sink, live=live, by=request.by
            )
        if survey_result.error:
            raise Refused(
                f"{plan.recipe.name} on {plan.backend}: {survey_result.error}",
                fix="try another --step or --on; `ortune apply` shows what the steps do",
            )
        if not survey_result.regions:
            raise BadModel(
                f"{Path(request.model).name} has no layer with weights",
                fix="give a model with Conv, MatMul or Gemm weights",
            )
        result = _make_result(request, context, plan, survey_result, notes)
    store_result(key, result)
    return result


def _read_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Read the steps, one of which decides a precision at least."""
    steps = tuple(map(reading.read_step, texts))
    if find_deciding_step(steps) is None:
        recipe = ", ".join(texts) or "nothing"
        raise BadSettings(
            f"--step {recipe}: none of its steps sets a precision",
            fix="end it in a quantizer, such as int8-static or int8-weights",
        )
    return steps


def _make_result(
    request: SensitivityRequest,
    context: Context,
    plan: Plan,
    survey_result: Survey,
    notes: Sequence[str],
) -> Sensitivity:
    name = survey_result.key if request.by == "region" else f"{survey_result.key}-{request.by}"
    begun = SurveyProgress(context.root, name).begun
    late = [entry for entry in survey_result.regions if entry.error == LATE]
    at = find_deciding_step(plan.recipe.steps)
    assert at is not None
    return Sensitivity(
        model=str(request.model),
        model_digest=file.compute_digest(Path(request.model)),
        by=request.by,
        recipe=tuple(map(str, plan.recipe.steps)),
        precision=str(plan.recipe.steps[at]),
        on=str(plan.backend),
        budget=str(context.budget),
        budget_rule=context.job.budget_rule,
        unit=survey_result.unit,
        samples=len(begun.samples) if begun is not None else 0,
        regions=sort_regions([entry for entry in survey_result.regions if entry not in late]),
        whole_cost=survey_result.whole_cost,
        not_reached=tuple(entry.region for entry in late),
        finished="time" if late else "done",
        seconds=survey_result.seconds,
        machine=context.job.machine,
        versions=context.job.versions,
        shared=tuple(sorted(survey_result.shared, key=lambda entry: -entry.cost)),
        notes=tuple(notes),
    )


# --- kept results -------------------------------------------------------------------------------


def _find_folder() -> Path | None:
    """Return where results lie, there or not; None without a home."""
    ours = find_cache_folder()
    return None if ours is None else ours / "sensitivity"


def find_result(key: str) -> Sensitivity | None:
    """Return what is kept under a key; None where there is nothing that can be used."""
    home = _find_folder()
    if home is None:
        return None
    try:
        with (home / f"{key}.json").open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        content = stored.parse_json(data) if len(data) <= _LARGEST else None
        if not isinstance(content, dict) or content.pop("key", None) != key:
            return None
        return codec.decode(Sensitivity, content)
    except (OSError, ValueError, OrtuneError):
        return None


def store_result(key: str, result: Sensitivity) -> None:
    """Keep a result that is whole; that it cannot be written changes nothing."""
    home = _find_folder()
    if home is None or result.finished != "done":
        return
    text = json.dumps({"key": key, **codec.encode(result)}, separators=(",", ":"))
    with suppress(OSError, OrtuneError):
        write_text(home / f"{key}.json", text + "\n", durable=False)
        dated = sorted((path.stat().st_mtime, path) for path in home.glob("*.json"))
        for _, old in dated[:-_FILES]:
            remove_path(old)
