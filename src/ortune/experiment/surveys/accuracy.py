"""A survey's forward runs: what each region costs alone, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core.errors import Refused
from ortune.core.event import Progress, Sink
from ortune.core.workload import spread
from ortune.data.stream import Stream
from ortune.experiment.context import Context
from ortune.experiment.surveys.progress import Begun, SurveyProgress
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker, worker_folder
from ortune.metrics.snr import Snr
from ortune.regions.costs import LOOKED_AT, AccuracyRuns, Scored
from ortune.regions.forms import Forms
from ortune.regions.losses import Loss
from ortune.regions.survey import SharedCost

_ORACLE = Cpu(level="basic")
_LITTLE = 0.01
"""Of what the whole costs, below which what neighbours may share is not asked for."""


class Accuracies:
    """Takes the costs that are not known yet, and keeps them.

    Args:
        folder: Receives outputs.
    """

    def __init__(
        self,
        context: Context,
        known: SurveyProgress,
        folder: Path,
        sink: Sink,
        clock: Callable[[], float],
    ) -> None:
        self._context, self._known, self._folder = context, known, folder
        self._sink, self._clock = sink, clock
        self._last = clock()

    def taken(
        self,
        forms: Forms,
        plain: Path,
        whole: Path,
        until: float,
        latest: float,
        apart: Callable[[], Forms],
    ) -> tuple[str, float, Forms]:
        """Take costs until the time is up.

        Args:
            plain: The model that the forms were made of.
            whole: The plan's model.
            until: As many samples are run as fit until then; which, the whole plan's losses say.
            latest: No region is begun after it.
            apart: Makes the forms anew, each in a model of its own, where the joint one differs.

        Returns:
            The unit of costs, what the whole costs, and the forms that were run.

        Raises:
            WorkerFailed: The float model does not run.
        """
        try:
            return (*self._run(forms, plain, whole, until, latest), forms)
        except Refused:
            forms = apart()
            return (*self._run(forms, plain, whole, until, latest), forms)

    def _run(
        self, forms: Forms, plain: Path, whole: Path, until: float, latest: float
    ) -> tuple[str, float]:
        known, metric = self._known, self._context.budget.metric
        if self._context.evaluate:
            metric = Snr(share=0)
        alone = all(form.region.name in known.costs for form in forms.all)
        if known.begun is not None and alone and not self._pairs(forms):
            return Loss.of(metric).unit, known.begun.whole.value
        with AccuracyRuns(
            forms, self._scored(), metric, self._folder, self._start, self._clock
        ) as costs:
            if known.begun is None:
                begun = Begun(*costs.begin(max(0.0, until - self._clock()), whole))
            else:
                begun = known.begun
                costs.go_on(begun.drawn)
            if forms.switches:
                costs.check(plain)
            if known.begun is None:
                known.add(begun, self._since())
            for at, form in enumerate(forms.all):
                if form.region.name in known.costs:
                    continue
                if form.changes and self._clock() > latest:
                    break
                self._sink(Progress("running regions alone", at, len(forms.all)))
                known.add(costs.alone(form), self._since())
            for one, two in self._pairs(forms):
                if self._clock() > latest:
                    break
                both = costs.together((forms.named(one), forms.named(two)))
                known.add(self._shared(one, two, both.value), self._since())
        return costs.loss.unit, begun.whole.value

    def _pairs(self, forms: Forms) -> list[tuple[str, str]]:
        """Return the neighbours whose shared cost is not known and may be much, the most first."""
        known, begun = self._known, self._known.begun
        own = {name: one.cost.value for name, one in known.costs.items() if not one.error}
        switched = {form.region.name for form in forms.all if form.switch is not None}
        found = {
            pair: min(own[name] for name in pair)
            for pair in forms.pairs
            if pair not in known.shared and set(pair) <= own.keys() & switched
        }
        least = _LITTLE * begun.whole.value if begun is not None else math.inf
        return sorted((one for one in found if found[one] > least), key=lambda one: -found[one])

    def _shared(self, one: str, two: str, both: float) -> SharedCost:
        """Return what of two regions' single costs is the same: no more than either has."""
        own = [self._known.costs[name].cost.value for name in (one, two)]
        return SharedCost(one, two, max(0.0, min(*own, sum(own) - both)))

    def _since(self) -> float:
        last, self._last = self._last, self._clock()
        return self._last - last

    def _scored(self) -> Scored:
        """Return the samples of the search's part; those that were recorded have no labels."""
        if self._context.evaluate:
            return Scored(spread(len(Stream(self._context.feeds[MAIN])), LOOKED_AT))
        part = self._context.parts["search"]
        return Scored(part.indices, part.labels)

    def _start(self, path: Path, label: str) -> Worker:
        context = self._context
        backend = replace(_ORACLE, custom_ops=context.materials[MAIN].custom_ops)
        folder = worker_folder(context.root / "workers", label)
        job = context.worker_job({MAIN: path}, backend, folder)
        return Worker(
            job,
            timeout_s=max(context.timeout_s, context.deadlines.judged_s),
            memory_limit=context.memory_limit,
        )
