"""One batch of a sweep: plans timed beside the original, in one pair or in fresh ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ortune.core.event import Note, Sink, Timing, TrialStarted
from ortune.core.step import AS_IS
from ortune.core.trial import Interval, Plan, Status, Trial
from ortune.experiment import measure
from ortune.experiment.build import build_all
from ortune.experiment.context import Context
from ortune.experiment.ledger import Ledger
from ortune.experiment.scores import score
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import (
    BaselineFailed,
    Effort,
    claiming,
    fresh_pairs,
    time_pair,
)
from ortune.measurement.timing.turns import ready


@dataclass
class AtBatch:
    """One batch: the trials so far, and how plans become more of them.

    Attributes:
        context: Of the search, with this batch in its workload.
        ledger: Of this batch alone.
        pair_seconds: Seconds of timing that a pair gets.
    """

    batch: int
    context: Context
    ledger: Ledger
    pair_seconds: float
    sink: Sink

    @contextmanager
    def live(self) -> Iterator[Worker]:
        """Start the original.

        Raises:
            WorkerFailed: It does not run at this batch.
        """
        with self._start(Plan(AS_IS, self.context.job.baseline), "baseline") as worker:
            ready(worker)
            yield worker

    def original(self, trial: Trial, live: Worker) -> None:
        """Time the original against itself: what this batch calls equal."""
        with self._start(trial.plan, "baseline") as worker:
            started = ready(worker)
            pair = time_pair(live, worker, self._effort())
        made = measure.measurement(started, [pair])
        self._record(replace(trial, measurement=made, ratio=Interval(1.0, 1.0, 1.0)))

    def look(self, trial: Trial, live: Worker, place: int, total: int) -> Trial:
        """Time a plan in one pair; whatever happens is a trial.

        One that was never scored, as it was slower at the search's batch, is scored if it is not
        slower here.
        """
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}", place, total))
        began = time.perf_counter()
        made = replace(trial, part="search", predicted=None, neighbour_of="")
        try:
            with self._start(trial.plan, "batch") as worker:
                started = ready(worker)
                pair = time_pair(live, worker, self._effort(), self._progress)
                if not made.scores and stats.ratio([pair], stats.SEARCHING).low <= 1:
                    part = self.context.parts["search"]
                    made = replace(made, scores=score(self.context, worker, trial.plan, part))
        except BaselineFailed:
            raise
        except WorkerFailed as error:
            return self._failed(made, error)
        measured = measure.measurement(started, [pair])
        return self._conclude(replace(made, measurement=measured), began)

    def confirm(self, trial: Trial) -> Trial:
        """Time a plan in fresh pairs; its accuracy is as it was scored."""
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}", 1, 1))
        began = time.perf_counter()
        base = Plan(AS_IS, self.context.job.baseline)
        fresh = fresh_pairs(
            lambda: self._start(base, "baseline"),
            lambda: self._start(trial.plan, "batch"),
            stats.PAIRS,
            claiming(self.pair_seconds),
            self._progress,
        )
        made = replace(trial, part="final")
        try:
            taken = [(one.started, one.pair) for one in fresh]
        except BaselineFailed:
            raise
        except WorkerFailed as error:
            return self._failed(made, error)
        measured = measure.measurement(taken[0][0], [pair for _, pair in taken])
        return self._conclude(replace(made, measurement=measured), began)

    def _conclude(self, made: Trial, began: float) -> Trial:
        learnt = measure.learnt(self.ledger.trials, but=made.key)
        made = replace(made, seconds=time.perf_counter() - began)
        return self._record(measure.concluded(self.context, made, learnt))

    def _failed(self, made: Trial, error: WorkerFailed) -> Trial:
        why = error.failure.reason
        return self._record(replace(made, status=Status.FAILED, ratio=None, why=why, error=why))

    def _record(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        said = trial.why if trial.ratio is None else f"{trial.ratio}"
        self.sink(Note(f"batch {self.batch}: {trial.plan}: {said}"))
        return trial

    def _start(self, plan: Plan, label: str) -> Worker:
        """Start a plan's worker at this batch.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        paths = self.context.models
        if plan.recipe.steps:
            paths = build_all(self.context, plan, self.sink).paths
        return measure.start(self.context, paths, plan.backend, label)

    def _effort(self) -> Effort:
        return Effort(seconds=self.pair_seconds, decide=False, burst=0.1)

    def _progress(self, found: Interval, done: int) -> None:
        self.sink(Timing(found, done))
