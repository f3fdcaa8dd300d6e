"""Measure the regions of a plan one at a time: what each costs, and what it saves in place."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.core.errors import OrtuneError, Refused
from ortune.core.event import Note, Progress, Sink
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan
from ortune.experiment.build import build_all
from ortune.experiment.context import Context
from ortune.experiment.keys import job_key
from ortune.experiment.surveys.accuracy import Accuracies
from ortune.experiment.surveys.progress import SurveyProgress
from ortune.experiment.surveys.timing import Timings
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing.pairs import BaselineFailed
from ortune.model.io import file
from ortune.quantization.roles import before_rounding, deciding
from ortune.recipe.build import build_in
from ortune.recipe.space import trial_key
from ortune.regions.costs import AccuracyCost
from ortune.regions.forms import Form, Forms, as_given, prepare
from ortune.regions.gains import UNKNOWN, Gain
from ortune.regions.grouping import By
from ortune.regions.survey import RegionCost, Survey, SurveyRequest

_ACCURACY, _LATEST = 0.5, 0.85
"""Of a survey's time: what costs are planned to take, and when they end in any case."""
_DRAFTS = "survey-"
_LATE = "no time was left to measure it"


def survey(
    context: Context,
    wanted: SurveyRequest | Plan,
    seconds: float,
    sink: Sink,
    live: Worker,
    clock: Callable[[], float] = time.monotonic,
    by: By = "region",
) -> Survey:
    """Measure the regions of a plan; whatever happens to the plan is a survey.

    What was measured before the run was killed is not measured again.

    Args:
        wanted: The plan; its deciding quantizer must leave nodes out by name.
        seconds: That it may take; what does not fit is left unmeasured and says so.
        live: The original, at work.
        by: What is taken at a time.

    Raises:
        BaselineFailed: The original does not run any more.
    """
    plan = wanted.plan if isinstance(wanted, SurveyRequest) else wanted
    key = trial_key(job_key(context.job), plan)
    known = SurveyProgress(context.root, key if by == "region" else f"{key}-{by}")
    began, spent = clock(), known.seconds
    for left in context.root.glob(f"{_DRAFTS}*"):  # of one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        with TemporaryDirectory(dir=context.root, prefix=_DRAFTS) as folder:
            until = began + seconds
            made = _Survey(context, plan, by, known, Path(folder), sink, until, clock)
            found = made.run(live)
    except BaselineFailed as error:
        if error.worker is live:
            raise
        found = Survey(key, plan, (), math.nan, error=error.failure.reason)
    except WorkerFailed as error:
        found = Survey(key, plan, (), math.nan, error=error.failure.reason)
    except OrtuneError as error:
        found = Survey(key, plan, (), math.nan, error=error.what)
    if found.error:
        sink(Note(f"regions of {plan} are not measured: {found.error}"))
    return replace(found, key=key, seconds=spent + clock() - began)


class _Survey:
    """One survey at work."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        by: By,
        known: SurveyProgress,
        folder: Path,
        sink: Sink,
        until: float,
        clock: Callable[[], float],
    ) -> None:
        if list(context.models) != [MAIN]:
            raise Refused(
                "regions of several models together are not measured", fix="search one alone"
            )
        at = deciding(plan.recipe.steps)
        if at is None:
            raise Refused(f"no step of {plan.recipe.name} decides a precision", fix="add one")
        step = plan.recipe.steps[at]
        assert isinstance(step, Quantizer)
        self._context, self._plan, self._known = context, plan, known
        self._folder, self._sink, self._until, self._clock = folder, sink, until, clock
        self._step, self._before, self._by = step, plan.recipe.steps[:at], by

    def run(self, live: Worker) -> Survey:
        """Take costs, then gains."""
        began, left = self._clock(), self._until - self._clock()
        files = build_all(self._context, self._plan, self._sink)
        given = self._built(self._before)
        forms, plain = self._forms(given)
        accuracy = Accuracies(self._context, self._known, self._folder, self._sink, self._clock)
        unit, whole, forms = accuracy.taken(
            forms,
            plain,
            files.paths[MAIN],
            began + _ACCURACY * left,
            began + _LATEST * left,
            lambda: self._forms(given, joint=False)[0],
        )
        timing = Timings(
            self._context, self._plan, self._known, self._sink, self._until, self._clock
        )
        timing.take(files, as_given(given, self._step), forms, live)
        regions = tuple(
            _joined(form, self._known.costs.get(form.region.name), timing.of(form))
            for form in forms.all
        )
        shared = tuple(self._known.shared.values())
        return Survey("", self._plan, regions, whole, unit, shared=shared)

    def _built(self, steps: Sequence[Step]) -> Path:
        """Return the model as some of the recipe's first steps make it."""
        cache, source = self._context.root / "artefacts", self._context.models[MAIN]
        recipe = Recipe("before", tuple(steps))
        return build_in(cache, source, recipe, self._context.materials[MAIN], sink=self._sink).path

    def _forms(self, given: Path, *, joint: bool = True) -> tuple[Forms, Path]:
        """Return the forms, and the model in float that they were made of.

        Args:
            given: The model as the deciding step gets it: with rounded weights it is no model in
                float any more, unless rounding changed more than constants.
        """
        plain = self._built(before_rounding(self._before))
        if plain != given:
            try:
                return self._made_of(plain, given, joint=joint), plain
            except Refused:
                pass
        return self._made_of(given, given, joint=joint), given

    def _made_of(self, plain: Path, given: Path, *, joint: bool) -> Forms:
        ranges = self._context.root / "artefacts" / "ranges" / file.digest(given)[:16]
        self._sink(Progress("quantizing regions alone"))
        return prepare(
            *(plain, self._step, self._context.materials[MAIN], self._folder),
            ranges=ranges,
            by=self._by,
            joint=joint,
            rounded=None if plain == given else given,
            sink=self._sink,
        )


def _joined(form: Form, cost: AccuracyCost | None, gain: Gain) -> RegionCost:
    """Put together what is known of a region."""
    region = form.region
    error = _LATE if cost is None else cost.error or gain.error
    return RegionCost(
        region.name,
        region.nodes,
        region.pattern,
        region.ops,
        UNKNOWN if cost is None or cost.error else cost.cost,
        gain.gained,
        form.saved,
        error,
        region.layers,
    )
