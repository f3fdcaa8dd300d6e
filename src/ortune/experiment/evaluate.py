"""Plans become trials: from the ledger, or built, timed against a live original, and scored."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink, TrialDone, TrialStarted
from ortune.core.step import AS_IS
from ortune.core.trial import Interval, Plan, Score, Status, Trial, Verdict
from ortune.experiment import measure
from ortune.experiment.build import build_all
from ortune.experiment.context import Scene
from ortune.experiment.keys import job_key
from ortune.experiment.ledger import Ledger
from ortune.measurement.process import Worker
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.timing.turns import ready
from ortune.model.io import file
from ortune.recipe.space import trial_key


@dataclass
class Attempts:
    """What a search does with one plan, whatever phase it is in.

    Attributes:
        scene: What is fixed.
        pair_seconds: Seconds of timing that a pair gets.
        sink: Receives the trials.
        stack: Ends the live original.
        notes: For the report.
    """

    scene: Scene
    pair_seconds: float
    sink: Sink
    stack: ExitStack
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.scene.root)
        self._job = job_key(self.scene.job)
        self._worker: Worker | None = None
        self._unchanged: set[str] = set()

    def key(self, plan: Plan) -> str:
        """Return the key of a plan's trial."""
        return trial_key(self._job, plan)

    def note(self, text: str) -> None:
        """Tell the user and the report."""
        self.notes.append(text)
        self.sink(Note(text))

    def baseline(self) -> None:
        """Record the untouched model and an A/A pair: what this machine calls equal."""
        plan = Plan(AS_IS, self.scene.job.baseline)
        key = self.key(plan)
        if self.ledger.find(key, "search") is not None:
            return
        self.sink(TrialStarted(plan, "baseline", 1, 1))
        with measure.start(self.scene, self.scene.models, plan.backend, "baseline") as worker:
            started = ready(worker)
            effort = Effort(min_blocks=6, max_blocks=12, seconds=2, decide=False)
            pair = time_pair(self._live(), worker, effort)
        budget, part = self.scene.budget, self.scene.parts["search"]
        value = budget.metric.aggregate(part.records)
        count = len(part.records)
        metric, why = str(budget.metric), "the original"
        score = Score(metric, value, value, value, value, count, Verdict.PROVED, None, why)
        self._recorded(
            Trial(
                key,
                plan,
                "search",
                Status.OK,
                Interval(1.0, 1.0, 1.0),
                (score,),
                sum(map(file.size, self.scene.models.values())),
                measure.measurement(started, [pair]),
                artefact="",
                why=why,
            )
        )

    def one(
        self, plan: Plan, phase: str, index: int, total: int, *, always_score: bool = False
    ) -> Trial | None:
        """Return the plan's trial, from the ledger or new; None when it changes nothing."""
        key = self.key(plan)
        known = self.ledger.find(key, "search")
        if known is not None:
            self.sink(TrialDone(known, cached=True))
            return known
        self.sink(TrialStarted(plan, phase, index, total))
        try:
            files = build_all(self.scene, plan, self.sink)
        except OrtuneError as error:
            return self._recorded(measure.failed(key, plan, error))
        if plan.recipe.steps and not files.changed:
            if plan.recipe.name not in self._unchanged:
                self._unchanged.add(plan.recipe.name)
                self.note(f"{plan.recipe.name}: nothing to change, not tried")
            return None
        part = self.scene.parts["search"]
        live = self._live()
        effort = Effort(seconds=self.pair_seconds)
        trial = measure.attempt(
            self.scene, key, plan, files, part, live, effort, self.sink, always_score=always_score
        )
        return self._recorded(trial)

    def final(self, trial: Trial, index: int, total: int) -> Trial:
        """Return a trial re-measured in fresh pairs on all evaluation samples."""
        known = self.ledger.find(trial.key, "final")
        if known is not None:
            self.sink(TrialDone(known, cached=True))
            return known
        self.sink(TrialStarted(trial.plan, "final", index, total))
        self._rest()
        files = build_all(self.scene, trial.plan, self.sink)
        # As long as three search pairs together: fresh processes tell more than longer ones.
        seconds = self.pair_seconds * 3 / stats.PAIRS
        effort = Effort(min_blocks=6, max_blocks=20, seconds=seconds, decide=False)
        return self._recorded(
            measure.finalist(self.scene, trial, files, stats.PAIRS, effort, self.sink)
        )

    def _recorded(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        self.sink(TrialDone(trial))
        return trial

    def _live(self) -> Worker:
        """Return the baseline worker that the search phase times against."""
        if self._worker is None or not self._worker.alive:
            worker = measure.start(
                self.scene, self.scene.models, self.scene.job.baseline, "baseline"
            )
            self._worker = self.stack.enter_context(worker)
            ready(worker)
        return self._worker

    def _rest(self) -> None:
        """End the baseline worker: finalists get fresh ones."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
