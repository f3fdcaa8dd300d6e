"""Plans become trials: built, timed against a live original, scored and recorded."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

from ortune.core.acceptance import Goal
from ortune.core.errors import Interruption, OrtuneError, find_interruption
from ortune.core.event import Note, Sink, TrialDone, TrialStarted, ignore_event
from ortune.core.plugins import codec
from ortune.core.progress import time_limit
from ortune.core.step import AS_IS
from ortune.core.trial import Interval, Plan, Proposal, Score, Status, Trial, Verdict
from ortune.graph.io import file
from ortune.measurement.accuracy import ERROR, compute_score
from ortune.measurement.devices import LEASES, Lease, find_lease
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing.pairs import Effort, Stop, claim_effort, time_pair
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure, misread
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import job_key
from ortune.search.experiment.ledger import Ledger, decode_trial
from ortune.search.experiment.measure import Files, build_all
from ortune.search.experiment.surveys import RegionJournal, survey_plan
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.recipe.space import trial_key

SHARED = "measured on a similar machine (--cache)"


@dataclass(frozen=True)
class BuiltPlan:
    """A plan that waits for its timing.

    Attributes:
        trial: What is known before it.
        measure: Times and scores it, on the device that is used where it is called.
    """

    proposal: Proposal
    trial: Trial
    began: float
    measure: Callable[[Sink], Trial]


@dataclass
class Attempts:
    """What a search does with one plan, whatever its stage."""

    context: Context
    pair_seconds: float
    sink: Sink
    stack: ExitStack
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.context.root)
        self.ledger.set_aside(self._is_void)
        self.journal = RegionJournal(self.context.root)
        self._job = job_key(self.context.job)
        self._workers: dict[Lease | None, Worker] = {}  # of the original, one a device
        self._began = self._building = 0.0

    def _is_void(self, trial: Trial) -> bool:
        """Whether an earlier command's trial is to be made again.

        It was cut short from outside, or scored on fewer samples than its part has by now.
        """
        final = trial.part == "final"
        parts = self.context.evaluation_parts() if final else (self.context.parts["search"],)
        samples = sum(len(part.records) for part in parts)
        fewer = trial.score is not None and trial.score.samples < samples
        return fewer or trial.interruption is not None

    def trial_key(self, plan: Plan) -> str:
        """Return the key of a plan's trial."""
        return trial_key(self._job, plan)

    def add_note(self, text: str) -> None:
        """Tell the user and the report."""
        self.notes.append(text)
        self.sink(Note(text))

    def measure_baseline(self) -> None:
        """Record the untouched model and an A/A pair: what this machine calls equal."""
        plan = Plan(AS_IS, self.context.job.baseline)
        key = self.trial_key(plan)
        if (recorded := self.ledger.find(key, "search")) is not None:
            self.sink(TrialDone(recorded, cached=True))
            return
        self._began = perf_counter()
        self.sink(TrialStarted(plan, "baseline"))
        context = self.context
        with measure.start_worker(context, context.models, plan.backend, "baseline") as worker:
            started = wait_until_ready(worker)
            effort = Effort(max_blocks=12, seconds=2, decide=False)
            pair = time_pair(self._ensure_baseline(beside=worker), worker, effort)
        budget, part = context.budget, context.parts["search"]
        value = compute_score(budget.metric, part.records, part.groups)
        metric, count, why = str(budget.metric), len(part.records), "the original"
        score = Score(metric, value, value, value, value, count, Verdict.PROVED, None, why)
        self._record_trial(
            Trial(
                key,
                plan,
                "search",
                Status.OK,
                Interval(1.0, 1.0, 1.0),
                (score,),
                sum(map(file.count_file_bytes, self.context.models.values())),
                measure.make_measurement(started, [pair]),
                artefact="",
                why=why,
                stage="baseline",
                emulated=self.context.job.emulated,
            )
        )

    def try_plan(
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
        built = self.build_plan(proposal, always_score=always_score, stop=stop, build_s=build_s)
        if isinstance(built, Trial):
            return built
        return self._record_trial(self._repeat_lost(partial(built.measure, self.sink)), proposal)

    def build_plan(
        self,
        proposal: Proposal,
        *,
        always_score: bool = False,
        stop: Stop | None = None,
        build_s: float = time_limit.NONE,
    ) -> Trial | BuiltPlan:
        """Return the trial of a plan that needs no timing, or what will time it: `try_plan`."""
        self._began, self._building = perf_counter(), 0.0
        plan, key = proposal.plan, self.trial_key(proposal.plan)
        self.sink(TrialStarted(plan, proposal.stage))
        cached = self.ledger.find(key, "search")
        partly = always_score and cached is not None and cached.stopped
        if cached is not None and cached.has_reached(proposal.effort) and not partly:
            self.sink(TrialDone(cached, cached=True))
            return cached
        if not always_score and (shared := self._take_shared(key, proposal)) is not None:
            return shared
        try:
            with time_limit.at_most(build_s):
                files = self._build_plan(plan)
        except (OrtuneError, OSError) as error:
            cause = find_interruption(error)
            if cause is None and isinstance(error, OSError):
                raise
            why = error.what if isinstance(error, OrtuneError) else str(error)
            died = Trial(key, plan, "search", Status.FAILED, why=why, error=str(error))
            return self._record_trial(replace(died, interruption=cause), proposal)
        if plan.recipe.steps and not files.changed:
            return self._record_unchanged(key, proposal, "its steps change nothing in this model")
        twin = None if always_score else self._find_twin(plan, files)
        if twin is not None:
            why = f"the same model as {twin.plan.recipe.name}, which was tried"
            return self._record_unchanged(key, proposal, why)
        if proposal.effort != "screen" and not always_score:
            over = self._too_large(key, plan, files)
            if over is not None:
                return self._record_trial(over, proposal)
        always = always_score or proposal.effort == "full"
        timing_effort = choose_effort(proposal, self.pair_seconds)
        former = [t.misreading for t in self.ledger.trials if t.misreading is not None]
        part = self.context.parts["search"]

        def measure_beside_original(sink: Sink) -> Trial:
            trial = measure.measure_plan(
                self.context,
                key,
                plan,
                files,
                part,
                self._ensure_baseline(),
                effort=timing_effort if always else replace(timing_effort, stop=stop),
                sink=sink,
                scored="never" if not proposal.score else "always" if always else "unless slower",
            )
            return misread.judge_file(self.context, trial, files, part, former, build_s)

        blank = _with_proposal(measure.make_blank(key, plan, part.name, files), proposal)
        blank = replace(blank, building=self._building)
        return BuiltPlan(proposal, blank, self._began, measure_beside_original)

    def record_plan(self, built: BuiltPlan, trial: Trial, ended: float) -> Trial:
        """Record the trial of a plan that was timed meanwhile, until `ended`."""
        self._building = built.trial.building
        self._began = built.began + perf_counter() - ended
        return self._record_trial(trial, built.proposal)

    def _repeat_lost(self, measure_trial: Callable[[], Trial]) -> Trial:
        """Return a trial, made once more where the connection to the device broke in it.

        A device that is not reached again ends the search; a node of a cluster has others.
        """
        trial = measure_unless_lost(measure_trial)
        if trial is not None:
            return trial
        self.end_baseline()
        self.add_note(f"{Interruption.LINK}: the trial is repeated")
        LEASES.set(LEASES.get()[1:] or LEASES.get())
        return measure_trial()

    def _take_shared(self, key: str, proposal: Proposal) -> Trial | None:
        """Record the trial that a like machine has measured and shared, where there is one.

        The key stands for model, samples, budget, packages and the machine; a claim is never
        taken: finalists are measured here.
        """
        shared = self.context.shared
        record = None if shared is None else shared.fetch_record("trials", [key])
        if record is None:
            return None
        try:
            trial = decode_trial(record, Path("trial"))
        except OrtuneError as error:
            self.add_note(f"a measurement in the cache is refused: {error.what}")
            return None
        if (trial.key, trial.plan, trial.part) != (key, proposal.plan, "search"):
            self.add_note("a measurement in the cache is refused: it is of another plan")
            return None
        if trial.interruption is not None or not trial.has_reached(proposal.effort):
            return None
        trial = replace(trial, why=f"{trial.why}; {SHARED}", reproduce=None)
        self.ledger.append(trial)
        self.sink(TrialDone(trial))
        return trial

    def _build_plan(self, plan: Plan) -> Files:
        began = perf_counter()
        leases = LEASES.get()
        if len(leases) < 2 and (worker := self._workers.get(*leases or (None,))) and worker.alive:
            worker.unload()  # where there are several it may be timing
        try:
            return build_all(self.context, plan, self.sink)
        finally:
            self._building = perf_counter() - began

    def _too_large(self, key: str, plan: Plan, files: Files) -> Trial | None:
        """Return the trial of a plan whose files are larger than was asked: it is not timed."""
        most = self.context.job.wanted.max_size
        if most is None or files.size <= most:
            return None
        trial = Trial(key, plan, "search", Status.TOO_LARGE, size=files.size, edits=files.edits)
        over = Goal(max_size=most).describe_excess(trial)
        return replace(trial, artefact=files.artefact, why=over)

    def _find_twin(self, plan: Plan, files: Files) -> Trial | None:
        """Return the search's trial of other steps that gave the very same model there."""
        candidates = (t for t in self.ledger.trials if t.part == "search" and t.content)
        alike = (
            t for t in candidates if t.content == files.content and self.trial_key(t.plan) == t.key
        )
        twins = (t for t in alike if t.plan.recipe.steps != plan.recipe.steps)
        return next((t for t in twins if t.plan.backend == plan.backend), None)

    def _record_unchanged(self, key: str, proposal: Proposal, why: str) -> Trial:
        """Record that a recipe edits nothing, or nothing new; it is said once a recipe."""
        name = proposal.plan.recipe.name
        noted = [t.plan.recipe.name for t in self.ledger.trials if t.status is Status.UNCHANGED]
        trial = Trial(key, proposal.plan, "search", Status.UNCHANGED, why=why)
        trial = replace(_with_proposal(trial, proposal), seconds=perf_counter() - self._began)
        self.ledger.append(trial)
        if name not in noted:
            self.add_note(f"{name}: {why}")
        return trial

    def measure_final(
        self,
        trial: Trial,
        seconds: float | None = None,
        is_enough: Callable[[Interval, bool], bool] = lambda ratio, accepted: False,
    ) -> Trial:
        """Return a trial re-measured in fresh pairs on all evaluation samples.

        One whose runs waited for a CPU is timed anew; its scores stand.

        Args:
            seconds: Of timing that each pair gets, where not the usual.
            is_enough: See `measure.measure_finalist`.
        """
        self.sink(TrialStarted(trial.plan, "final"))
        cached = self.ledger.find(trial.key, "final")
        if cached is not None and not cached.is_disturbed:
            self.sink(TrialDone(cached, cached=True))
            return cached
        self._began, self._building = perf_counter(), 0.0
        self.end_baseline()
        files = self._build_plan(trial.plan)
        effort = claim_effort(self.pair_seconds)
        if seconds is not None:
            effort = replace(effort, seconds=seconds)
        learnt = measure.pool_variance(self.ledger.trials, but=trial.key)
        measure_final = partial(
            measure.measure_finalist,
            self.context,
            trial,
            files,
            effort=effort,
            sink=self.sink,
            learnt=learnt,
            is_enough=is_enough,
            provable=self._can_prove_more(),
            plans=self.ledger.count_looked_at(),
            chosen_by_samples=trial.key in {outcome.key for outcome in self.journal.mixtures},
            former_scores=cached.scores if cached is not None else (),
        )
        final = self._repeat_lost(measure_final)
        return self._record_trial(final, Proposal(trial.plan, "final", "among the fastest"))

    def time_against(self, plan: Plan, other: Plan) -> Interval | None:
        """Return a plan's latency over another's, timed together once; nothing is recorded.

        None where one of them cannot be built or does not run.
        """
        self.end_baseline()
        once = choose_effort(Proposal(plan, "versus"), self.pair_seconds)
        part = self.context.parts["search"]
        try:
            built = [build_all(self.context, each, ignore_event) for each in (plan, other)]
            paths = built[1].paths
            with measure.start_worker(self.context, paths, other.backend, "versus") as live:
                wait_until_ready(live)
                trial = measure.measure_plan(
                    self.context,
                    self.trial_key(plan),
                    plan,
                    built[0],
                    part,
                    live,
                    effort=once,
                    sink=ignore_event,
                    scored="never",
                )
        except (OrtuneError, OSError, WorkerFailed):
            return None
        return trial.ratio

    def survey_regions(self, request: SurveyRequest, seconds: float) -> None:
        """Measure the regions of a plan one at a time, in so many seconds at most."""
        live = self._ensure_baseline()
        self.journal.add(survey_plan(self.context, request, seconds, self.sink, live=live))

    def _can_prove_more(self) -> bool:
        """Whether the chance of a false proof, 5 % for the whole run, has room for one more plan.

        Finalists of all commands that went on with this run have spent it, but those whose proof
        is by construction: no sample spoke for them.
        """
        judged = self.ledger.list_judged_scores()
        proved = Verdict.PROVED
        spent = sum(s.error for s in judged if s.verdict is not proved or s.proved_on is not None)
        return spent + self.context.error <= ERROR * (1 + 1e-9)

    def _record_trial(self, trial: Trial, proposal: Proposal | None = None) -> Trial:
        if proposal is not None:
            trial = _with_proposal(trial, proposal)
        spent = perf_counter() - self._began
        trial = replace(trial, seconds=spent, building=self._building)
        self.ledger.append(trial)
        shared = self.context.shared
        if shared and trial.part == "search" and trial.measurement and trial.stage != "baseline":
            shared.store_record("trials", [trial.key], codec.encode(trial))
        self.sink(TrialDone(trial))
        return trial

    def _ensure_baseline(self, beside: Worker | None = None) -> Worker:
        """Return the baseline worker that the search phase times against.

        Beside a live worker of the original, large ones hold the model in turns.
        """
        context, backend = self.context, self.context.job.baseline
        lease = find_lease(context.job.environment)
        worker = self._workers.get(lease)
        if worker is None or not worker.alive:
            worker = measure.start_worker(context, context.models, backend, "baseline")
            self._workers[lease] = self.stack.enter_context(worker)
            if beside is not None:
                worker.take_turns_with(beside)
            wait_until_ready(worker)
        return worker

    def end_baseline(self, lease: Lease | None = None) -> None:
        """End the baseline worker of a device, or of that used now: finalists get fresh ones."""
        lease = lease or find_lease(self.context.job.environment)
        if (worker := self._workers.pop(lease, None)) is not None:
            worker.close()


def measure_unless_lost(measure_trial: Callable[[], Trial]) -> Trial | None:
    """Return a trial; None where the connection to the device broke in it."""
    try:
        trial = measure_trial()
    except WorkerFailed as error:
        if error.interruption is not Interruption.LINK:
            raise
        return None
    return None if trial.interruption is Interruption.LINK else trial


def choose_effort(proposal: Proposal, pair_seconds: float) -> Effort:
    """Return how long the timing of a proposal may take; `pair_seconds` is a search pair's."""
    return {
        "search": Effort(seconds=pair_seconds, burst=0.1),
        "screen": Effort(max_blocks=1, decide=False, burst=0.06),
        "full": Effort(seconds=pair_seconds, decide=False, burst=0.1),
    }[proposal.effort]


def _with_proposal(trial: Trial, proposal: Proposal) -> Trial:
    return replace(
        trial,
        stage=proposal.stage,
        proposed="" if trial.emulated else proposal.why,
        neighbour_of=proposal.neighbour_of,
        effort=proposal.effort,
    )
