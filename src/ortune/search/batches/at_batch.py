"""One batch of a sweep: plans timed beside the original, in one pair or in fresh ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ortune.core.event import Note, Sink, TrialStarted
from ortune.core.trial import Interval, Status, Trial
from ortune.experiment import measure
from ortune.experiment.build import build_all
from ortune.experiment.context import Context
from ortune.experiment.ledger import Ledger
from ortune.measurement.process import Worker
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, claiming, time_pair
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
        with self._original() as worker:
            ready(worker)
            yield worker

    def original(self, trial: Trial, live: Worker) -> None:
        """Time the original against itself: what this batch calls equal."""
        with self._original() as worker:
            started = ready(worker)
            pair = time_pair(live, worker, self._effort())
        made = measure.measurement(started, [pair])
        self._record(replace(trial, measurement=made, ratio=Interval(1.0, 1.0, 1.0)))

    def look(self, trial: Trial, live: Worker) -> Trial:
        """Time a plan in one pair; whatever happens is a trial.

        One that was never scored, as it was slower at the search's batch, is scored if it is not
        slower here.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}"))
        seen = measure.attempt(
            self.context,
            trial.key,
            trial.plan,
            build_all(self.context, trial.plan, self.sink),
            self.context.parts["search"],
            live,
            self._effort(),
            self.sink,
            scored="never" if trial.scores else "unless slower",
        )
        scores = () if seen.status is Status.FAILED else seen.scores or trial.scores
        made = replace(seen, scores=scores, stage=trial.stage, proposed=trial.proposed)
        return self._record(measure.concluded(self.context, made, self._learnt(trial)))

    def confirm(self, trial: Trial) -> Trial:
        """Time a plan in fresh pairs; its accuracy is as it was scored.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}"))
        files = build_all(self.context, trial.plan, self.sink)
        effort, learnt = claiming(self.pair_seconds), self._learnt(trial)
        made = measure.finalist(
            *(self.context, trial, files, stats.PAIRS, effort, self.sink, learnt),
            known=trial.scores,
        )
        return self._record(replace(made, stage=trial.stage, proposed=trial.proposed))

    def _learnt(self, trial: Trial) -> stats.Learnt:
        return measure.learnt(self.ledger.trials, but=trial.key)

    def _record(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        said = trial.why if trial.ratio is None else f"{trial.ratio}"
        self.sink(Note(f"batch {self.batch}: {trial.plan}: {said}"))
        return trial

    def _original(self) -> Worker:
        context = self.context
        return measure.start(context, context.models, context.job.baseline, "baseline")

    def _effort(self) -> Effort:
        return Effort(seconds=self.pair_seconds, decide=False, burst=0.1)
