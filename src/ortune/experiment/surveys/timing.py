"""A survey's comparisons: what a pattern's regions save, the plan with and without them."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ortune.core.errors import OrtuneError
from ortune.core.event import Progress, Sink, silent
from ortune.core.step import Recipe
from ortune.core.trial import Interval, Plan
from ortune.experiment import measure
from ortune.experiment.build import Files, build_all
from ortune.experiment.context import Context
from ortune.experiment.ledger import read_trials
from ortune.experiment.surveys.progress import Compared, SurveyProgress
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.timing.turns import ready
from ortune.regions.forms import Form, Forms
from ortune.regions.gains import UNKNOWN, Gain, Pattern, patterns
from ortune.regions.leaving import in_float, without

_LATE = "no time was left to time it"
_SHORTEST_S, _LONGEST_S = 1.5, 4.0
"""Seconds of a comparison."""
_NONE = Interval(0.0, 0.0, 0.0)


class Timings:
    """Takes the gains that are not known yet, and keeps them."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        known: SurveyProgress,
        sink: Sink,
        until: float,
        clock: Callable[[], float],
    ) -> None:
        self._context, self._plan, self._known = context, plan, known
        self._sink, self._until, self._clock = sink, until, clock
        self._last = clock()
        self._patterns: dict[str, Pattern] = {}
        self._learnt = measure.learnt(read_trials(context.root))

    def of(self, form: Form) -> Gain:
        """Return what a region saves; nothing where the plan leaves it in float.

        What there was no time for is bounded by the profile, as little patterns are.
        """
        pattern = form.region.pattern
        if not form.changes:
            return Gain(pattern, _NONE, timed=False)
        if pattern in self._known.gains:
            return self._known.gains[pattern]
        late, compared = self._patterns.get(pattern), self._known.compared
        if late is None or compared is None or math.isnan(late.share):
            return Gain(pattern, UNKNOWN, error=_LATE)
        return late.untimed(compared.ratio.value)

    def take(self, files: Files, model: ir.Model, forms: Forms, live: Worker) -> None:
        """Time the plan against the original, and against itself without each pattern.

        Args:
            files: The plan's.
            model: As the deciding step gets it.
            live: The original, at work.

        Raises:
            WorkerFailed: The plan does not run, or the original.
        """
        changed = [form.region for form in forms.all if form.changes]
        found = patterns(model, changed, self._context.by_operator)
        self._patterns = {one.pattern: one for one in found}
        wanted = [one for one in found if one.pattern not in self._known.gains]
        if not wanted or self._left() <= 0:
            return
        with measure.start(self._context, files.paths, self._plan.backend, "regions") as worker:
            ready(worker)
            if self._known.compared is None:
                ratio = self._ratio(live, worker, 1 + sum(not one.little for one in wanted))
                self._known.add(Compared(ratio), self._since())
            assert self._known.compared is not None
            compared = self._known.compared.ratio
            plan = compared.value
            large = [one for one in wanted if not (one.little or one.blurred(compared))]
            for one in wanted:
                if one not in large:
                    self._known.add(one.untimed(plan), self._since())
            for at, one in enumerate(large):
                if self._left() <= 0:
                    return
                self._sink(Progress("timing regions in place", at, len(large)))
                every = len(one.regions) == len(changed)
                found_gain = self._gain(one, plan, model, worker, len(large) - at, every=every)
                self._known.add(found_gain, self._since())

    def _gain(
        self,
        one: Pattern,
        plan: float,
        model: ir.Model,
        worker: Worker,
        left: int,
        *,
        every: bool,
    ) -> Gain:
        """Compare the plan with itself without a pattern's regions."""
        steps = self._plan.recipe.steps
        names = [name for region in one.regions for name in region.layers]
        try:
            less = in_float(steps) if every else without(steps, model, names)
            other = Plan(Recipe("without a pattern", less), self._plan.backend)
            files = build_all(self._context, other, silent)
            with measure.start(self._context, files.paths, other.backend, "without") as candidate:
                ready(candidate)
                ratio = self._ratio(worker, candidate, left)
        except WorkerFailed as error:
            if error.worker is worker:
                raise
            return Gain(one.pattern, UNKNOWN, error=error.failure.reason)
        except OrtuneError as error:
            return Gain(one.pattern, UNKNOWN, error=error.what)
        return one.gain(plan, ratio)

    def _ratio(self, baseline: Worker, candidate: Worker, left: int) -> Interval:
        """Time a pair, in its part of the time that is left."""
        seconds = min(_LONGEST_S, max(_SHORTEST_S, self._left() / max(1, 2 * left)))
        effort = Effort(seconds=seconds, decide=False, burst=0.1)
        pair = time_pair(baseline, candidate, effort)
        return stats.ratio([pair], learnt=self._learnt)

    def _left(self) -> float:
        return self._until - self._clock()

    def _since(self) -> float:
        last, self._last = self._last, self._clock()
        return self._last - last
