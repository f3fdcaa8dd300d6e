"""Plans become trials: built, timed against a live original, scored and recorded."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter

from ortune.core.acceptance import Goal
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink, TrialDone, TrialStarted, silent
from ortune.core.progress import time_limit
from ortune.core.step import AS_IS
from ortune.core.trial import Interval, Plan, Proposal, Score, Status, Trial, Verdict
from ortune.graph.io import file
from ortune.measurement.accuracy import ERROR, scored
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, Stop, claiming, time_pair
from ortune.measurement.timing.turns import ready
from ortune.search.experiment import measure
from ortune.search.experiment.build import Files, build_all
from ortune.search.experiment.context import Context
from ortune.search.experiment.keys import job_key
from ortune.search.experiment.ledger import Ledger
from ortune.search.experiment.surveys import RegionJournal, survey
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.recipe.space import trial_key


@dataclass
class Attempts:
    """What a search does with one plan, whatever its stage.

    Attributes:
        context: What is fixed.
        pair_seconds: Seconds of timing that a pair gets.
        sink: Receives the trials.
        stack: Ends the live original.
        notes: For the report.
    """

    context: Context
    pair_seconds: float
    sink: Sink
    stack: ExitStack
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.context.root)
        self.surveys = RegionJournal(self.context.root)
        self._job = job_key(self.context.job)
        self._worker: Worker | None = None
        self._began = self._building = 0.0

    def key(self, plan: Plan) -> str:
        """Return the key of a plan's trial."""
        return trial_key(self._job, plan)

    def note(self, text: str) -> None:
        """Tell the user and the report."""
        self.notes.append(text)
        self.sink(Note(text))

    def baseline(self) -> None:
        """Record the untouched model and an A/A pair: what this machine calls equal."""
        plan = Plan(AS_IS, self.context.job.baseline)
        key = self.key(plan)
        if self.ledger.find(key, "search") is not None:
            return
        self._began = perf_counter()
        self.sink(TrialStarted(plan, "baseline"))
        with measure.start(self.context, self.context.models, plan.backend, "baseline") as worker:
            started = ready(worker)
            effort = Effort(max_blocks=12, seconds=2, decide=False)
            pair = time_pair(self._live(), worker, effort)
        budget, part = self.context.budget, self.context.parts["search"]
        value = scored(budget.metric, part.records, part.groups)
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
                sum(map(file.size, self.context.models.values())),
                measure.measurement(started, [pair]),
                artefact="",
                why=why,
                stage="baseline",
            )
        )

    def one(
        self,
        proposal: Proposal,
        *,
        always_score: bool = False,
        stop: Stop | None = None,
        build_s: float = time_limit.NONE,
    ) -> Trial:
        """Return the trial of a proposed plan, from the ledger or new.

        Args:
            proposal: What to try.
            always_score: Score it even where it has lost on time; one that was stopped part way
                is timed anew.
            stop: Ends the timing part way, unless all of it is wanted.
            build_s: Seconds that building may take; what takes longer fails.
        """
        self._began, self._building = perf_counter(), 0.0
        plan, key = proposal.plan, self.key(proposal.plan)
        self.sink(TrialStarted(plan, proposal.stage))
        known = self.ledger.find(key, "search")
        partly = always_score and known is not None and known.stopped
        if known is not None and known.taken(proposal.effort) and not partly:
            self.sink(TrialDone(known, cached=True))
            return known
        try:
            with time_limit.at_most(build_s):
                files = self._built(plan)
        except OrtuneError as error:
            died = Trial(key, plan, "search", Status.FAILED, why=error.what, error=str(error))
            return self._recorded(died, proposal)
        if plan.recipe.steps and not files.changed:
            return self._unchanged(key, proposal, "nothing to change, not tried")
        twin = None if always_score else self._twin(plan, files)
        if twin is not None:
            why = f"it builds the same model as {twin.plan.recipe.name}, which was tried"
            return self._unchanged(key, proposal, why)
        if proposal.effort != "screen" and not always_score:
            over = self._too_large(key, plan, files)
            if over is not None:
                return self._recorded(over, proposal)
        always = always_score or proposal.effort == "full"
        wanted = effort(proposal, self.pair_seconds)
        trial = measure.attempt(
            self.context,
            key,
            plan,
            files,
            self.context.parts["search"],
            self._live(),
            wanted if always else replace(wanted, stop=stop),
            self.sink,
            scored="always" if always else "unless slower" if proposal.score else "never",
        )
        return self._recorded(trial, proposal)

    def _built(self, plan: Plan) -> Files:
        began = perf_counter()
        try:
            return build_all(self.context, plan, self.sink)
        finally:
            self._building = perf_counter() - began

    def _too_large(self, key: str, plan: Plan, files: Files) -> Trial | None:
        """Return the trial of a plan whose files are larger than was asked: it is not timed."""
        most = self.context.job.wanted.max_size
        if most is None or files.size <= most:
            return None
        made = Trial(key, plan, "search", Status.TOO_LARGE, size=files.size, edits=files.edits)
        over = Goal(max_size=most).over(made)
        return replace(made, artefact=files.artefact, why=over)

    def _twin(self, plan: Plan, files: Files) -> Trial | None:
        """Return the search's trial of other steps that gave the very same model there."""
        found = (t for t in self.ledger.trials if t.part == "search" and t.content)
        alike = (t for t in found if t.content == files.content and self.key(t.plan) == t.key)
        others = (t for t in alike if t.plan.recipe.steps != plan.recipe.steps)
        return next((t for t in others if t.plan.backend == plan.backend), None)

    def _unchanged(self, key: str, proposal: Proposal, why: str) -> Trial:
        """Record that a recipe edits nothing, or nothing new; it is said once a recipe."""
        name = proposal.plan.recipe.name
        told = [t.plan.recipe.name for t in self.ledger.trials if t.status is Status.UNCHANGED]
        trial = Trial(key, proposal.plan, "search", Status.UNCHANGED, why=why)
        trial = replace(_of(trial, proposal), seconds=perf_counter() - self._began)
        self.ledger.append(trial)
        if name not in told:
            self.note(f"{name}: {why}")
        return trial

    def final(self, trial: Trial, seconds: float | None = None) -> Trial:
        """Return a trial re-measured in fresh pairs on all evaluation samples.

        Args:
            seconds: Of timing that each pair gets, where not the usual.
        """
        self.sink(TrialStarted(trial.plan, "final"))
        known = self.ledger.find(trial.key, "final")
        if known is not None:
            self.sink(TrialDone(known, cached=True))
            return known
        self._began, self._building = perf_counter(), 0.0
        self._rest()
        files = self._built(trial.plan)
        effort = claiming(self.pair_seconds)
        if seconds is not None:
            effort = replace(effort, seconds=seconds)
        learnt = measure.learnt(self.ledger.trials, but=trial.key)
        found = measure.finalist(
            self.context,
            trial,
            files,
            stats.PAIRS,
            effort,
            self.sink,
            learnt,
            provable=self._provable(),
        )
        return self._recorded(found, Proposal(trial.plan, "final", "among the fastest"))

    def versus(self, plan: Plan, other: Plan) -> Interval | None:
        """Return a plan's latency over another's, timed together once; nothing is recorded.

        None where one of them cannot be built or does not run.
        """
        self._rest()
        once = effort(Proposal(plan, "versus"), self.pair_seconds)
        part = self.context.parts["search"]
        try:
            built = [build_all(self.context, one, silent) for one in (plan, other)]
            with measure.start(self.context, built[1].paths, other.backend, "versus") as live:
                ready(live)
                trial = measure.attempt(
                    *(self.context, self.key(plan), plan, built[0], part, live, once, silent),
                    scored="never",
                )
        except (OrtuneError, WorkerFailed):
            return None
        return trial.ratio

    def survey(self, request: SurveyRequest, seconds: float) -> None:
        """Measure the regions of a plan one at a time, in so many seconds at most."""
        self.surveys.add(survey(self.context, request, seconds, self.sink, self._live()))

    def _provable(self) -> bool:
        """Whether the chance of a false proof, 5 % for the whole run, has room for one more plan.

        Finalists of all commands that went on with this run have spent it, but those whose proof
        is by construction: no sample spoke for them.
        """
        judged = [t.score for t in self.ledger.trials if t.part == "final" and t.score]
        proved = Verdict.PROVED
        spent = sum(s.error for s in judged if s.verdict is not proved or s.proved_on is not None)
        return spent + self.context.error <= ERROR * (1 + 1e-9)

    def _recorded(self, trial: Trial, proposal: Proposal | None = None) -> Trial:
        if proposal is not None:
            trial = _of(trial, proposal)
        spent = perf_counter() - self._began
        trial = replace(trial, seconds=spent, building=self._building)
        self.ledger.append(trial)
        self.sink(TrialDone(trial))
        return trial

    def _live(self) -> Worker:
        """Return the baseline worker that the search phase times against."""
        if self._worker is None or not self._worker.alive:
            worker = measure.start(
                self.context, self.context.models, self.context.job.baseline, "baseline"
            )
            self._worker = self.stack.enter_context(worker)
            ready(worker)
        return self._worker

    def _rest(self) -> None:
        """End the baseline worker: finalists get fresh ones."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def effort(proposal: Proposal, pair_seconds: float) -> Effort:
    """Return how long the timing of a proposal may take.

    Args:
        pair_seconds: Seconds of timing that a pair of the search gets.
    """
    return {
        "search": Effort(seconds=pair_seconds, burst=0.1),
        "screen": Effort(max_blocks=1, decide=False, burst=0.06),
        "full": Effort(seconds=pair_seconds, decide=False, burst=0.1),
    }[proposal.effort]


def _of(trial: Trial, proposal: Proposal) -> Trial:
    return replace(
        trial,
        stage=proposal.stage,
        proposed=proposal.why,
        neighbour_of=proposal.neighbour_of,
        effort=proposal.effort,
    )
