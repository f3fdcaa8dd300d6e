"""After a search: leading plans at other batches, and finalists on other machines.

They are timed in turns with the original, and confirmed in fresh pairs. What is timed on a machine
was built and scored once, where the search took place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.event import Note, Sink, TrialStarted
from ortune.core.facts import Facts
from ortune.core.plan_label import label_plan
from ortune.core.step import AS_IS
from ortune.core.study import Ending, Study
from ortune.core.trial import Interval, Plan, Score, Status, Trial
from ortune.core.wording import describe_speedup, format_count
from ortune.data import stream
from ortune.data.batches import check_batch
from ortune.measurement.accuracy import decide_likely
from ortune.measurement.devices import Device, LinkLost, open_device
from ortune.measurement.executors import open_devices
from ortune.measurement.process import (
    Worker,
    WorkerFailed,
    compute_outputs,
    require_backend,
    single_model_job,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, claim_effort, time_pair
from ortune.measurement.timing.turns import Deadlines, StartupTimes, wait_until_ready
from ortune.search.batch_rows import read_search_batch
from ortune.search.compare import is_clearly_faster, select_finalists
from ortune.search.experiment import golden, measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment, describe_difference
from ortune.search.experiment.ledger import (
    Ledger,
    count_looked_at,
    read_header,
    write_ending,
    write_header,
)
from ortune.search.experiment.measure import build_all
from ortune.search.recipe.compare import compute_snr_db


@dataclass
class PlacedTrials:
    """One batch or machine: the trials so far, and how plans become more of them.

    Attributes:
        place: Which, in words.
        searched: Trials of the search, whose scores were looked at before.
    """

    place: str
    context: Context
    ledger: Ledger
    pair_seconds: float
    sink: Sink
    searched: Sequence[Trial] = ()

    def __post_init__(self) -> None:
        self._effort = Effort(seconds=self.pair_seconds, decide=False, burst=0.1)

    @contextmanager
    def start_original(self) -> Iterator[tuple[Worker, StartupTimes]]:
        """Start the original. Raises WorkerFailed: it does not run there."""
        context = self.context
        baseline = context.job.baseline
        with measure.start_worker(context, context.models, baseline, "baseline") as worker:
            yield worker, wait_until_ready(worker)

    def time_original(self, trial: Trial, live: Worker) -> None:
        """Time the original against itself: what is equal there."""
        with self.start_original() as (worker, started):
            pair = time_pair(live, worker, self._effort)
        measurement = measure.make_measurement(started, [pair])
        equal, emulated = Interval(1.0, 1.0, 1.0), self.context.job.emulated
        self._record_trial(replace(trial, measurement=measurement, ratio=equal, emulated=emulated))

    def time_plan(self, trial: Trial, live: Worker) -> Trial:
        """Time a plan in one pair; whatever happens is a trial.

        One that was never scored, as it was slower at the search's batch, is scored if it is not
        slower here.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, self.place))
        seen = measure.measure_plan(
            self.context,
            trial.key,
            trial.plan,
            build_all(self.context, trial.plan, self.sink),
            self.context.parts["search"],
            live,
            effort=self._effort,
            sink=self.sink,
            scored="never" if trial.scores else "unless slower",
        )
        scores = () if seen.status is Status.FAILED else seen.scores or trial.scores
        attempt = replace(seen, scores=scores, stage=trial.stage, proposed=trial.proposed)
        learnt = measure.pool_variance(self.ledger.trials, but=trial.key)
        return self._record_trial(measure.judge_trial(self.context, attempt, learnt))

    def confirm_plan(self, trial: Trial) -> Trial:
        """Time a plan in fresh pairs; its accuracy is as it was scored.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, self.place))
        files = build_all(self.context, trial.plan, self.sink)
        learnt = measure.pool_variance(self.ledger.trials, but=trial.key)
        plans = count_looked_at((*self.searched, *self.ledger.trials))
        scores = tuple(decide_likely(score, plans) for score in trial.scores)
        effort = claim_effort(self.pair_seconds)
        final = measure.measure_finalist(
            self.context,
            trial,
            files,
            effort=effort,
            sink=self.sink,
            learnt=learnt,
            former_scores=scores,
            kept=False,
        )
        return self._record_trial(replace(final, stage=trial.stage, proposed=trial.proposed))

    def _record_trial(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        summary = trial.why if trial.ratio is None else describe_speedup(trial.shown_ratio)
        name = label_plan(trial.plan, Plan(AS_IS, self.context.job.baseline))
        self.sink(Note(f"{self.place}: {name}: {summary}"))
        return trial


_SHARE = 0.3
"""Of the time: what the batches get, and what the other machines get; the search has the rest."""
LEADERS = 4
"""Plans that are timed at every batch beside the original, each another recipe or backend."""
_FIRST = 2  # of these, timed at all batches before the others are at any


def compute_share(batches: Sequence[int], devices: str | None) -> float:
    """Return the share of the time that other batches and machines get."""
    return _SHARE * bool(batches) + _SHARE * bool(devices)


def validate_batches(
    batches: Sequence[int], max_latency: float | None, experiment: Experiment, facts: Facts
) -> None:
    """Refuse batches that the model, the data or the workload cannot have: raise BadSettings."""
    if experiment.evaluate:
        raise BadSettings(
            "--batches stacks samples, and --evaluate makes its own calls",
            fix="leave out --batches, or give --data in place of --evaluate",
        )
    workload = experiment.workload
    if max_latency is not None and workload.measure != "latency":
        raise BadSettings(
            f"--max-latency limits single runs, but workload {workload.name()} measures "
            f"{workload.measure}",
            fix="leave out --max-latency, or use --workload latency",
        )
    try:
        check_batch(max(batches), facts.inputs)
    except BadData as error:
        fix = error.fix.replace("--batch ", "--batches ")
        raise BadSettings(error.what, fix=fix) from None


def select_leading_plans(study: Study) -> list[Trial]:
    """Return the plans worth timing at other batches: the winner, then the fastest others.

    One of each recipe and kind of backend. A plan that is slower at the search's own batch may
    lead at another; what fails the budget or breaks a bound may not.
    """
    latest = {t.key: t for t in study.trials if t.key != study.baseline.key}
    last = [t for t in latest.values() if t.ratio is not None and study.job.wanted.keeps_bounds(t)]
    fit = [t for t in last if t.status not in (Status.FAILS, Status.FAILED)]
    ranked = sorted(fit, key=lambda t: (t.key != study.best.key, t.ratio.value if t.ratio else 1))
    by_kind: dict[tuple[str, type], Trial] = {}
    for trial in ranked:
        by_kind.setdefault((trial.plan.recipe.key, type(trial.plan.backend)), trial)
    return list(by_kind.values())[:LEADERS]


@dataclass
class Sweep:
    """Times leading plans at batches, and confirms the best of each in fresh pairs."""

    context: Context
    study: Study
    remaining_s: Callable[[], float]
    sink: Sink
    pair_seconds: float = 1.0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._longest: dict[str, float] = {}
        self._scores: dict[str, tuple[Score, ...]] = {}

    def run(self, batches: Sequence[int]) -> None:
        """Look at every batch once, then confirm as far as time goes: leaders, then rivals."""
        plans, present = select_leading_plans(self.study), read_search_batch(self.study)
        timed = [self._open_batch(batch) for batch in batches if batch != present]
        for leaders in (plans[:_FIRST], plans):
            timed = [at_batch for at_batch in timed if self._time_plans(at_batch, leaders)]
        unsure = {
            at_batch.context.job.workload.batch
            for rival in (False, True)
            for at_batch in timed
            if not self._confirm_leader(at_batch, rival=rival)
        }
        if unsure:
            sizes = ", ".join(map(str, sorted(unsure)))
            self._add_note(f"out of time, not re-measured: the fastest plans at batch {sizes}")

    def _open_batch(self, batch: int) -> PlacedTrials:
        root = self.context.root / "batches" / str(batch)
        root.mkdir(parents=True, exist_ok=True)
        workload = replace(self.context.job.workload, batch=batch)
        context = replace(self.context, job=replace(self.context.job, workload=workload))
        ledger = Ledger(root)
        ledger.set_aside(lambda trial: trial.interruption is not None)
        return PlacedTrials(f"batch {batch}", context, ledger, self.pair_seconds, self.sink)

    def _time_plans(self, at_batch: PlacedTrials, plans: Sequence[Trial]) -> bool:
        """Time the original and the plans once; say whether any plan could be timed."""
        pending = [t for t in plans if at_batch.ledger.find(t.key, "search") is None]
        if pending and not self._is_out_of_time(at_batch, pending):
            try:
                with at_batch.start_original() as (live, _):
                    if not at_batch.ledger.trials:
                        at_batch.time_original(self.study.baseline, live)
                    for place, trial in enumerate(pending):
                        if place and self._is_out_of_time(at_batch, pending[place:]):
                            break
                        scores = self._scores.get(trial.key, trial.scores)
                        with self._track_duration("look"):
                            seen = at_batch.time_plan(replace(trial, scores=scores), live)
                        self._scores[trial.key] = seen.scores
            except WorkerFailed as error:
                why = error.failure.reason
                self._add_note(f"the original does not run at {at_batch.place}: {why}")
        return len(at_batch.ledger.trials) > 1

    def _is_out_of_time(self, at_batch: PlacedTrials, pending: Sequence[Trial]) -> bool:
        """Whether there is no time to look at one more plan; it is noted."""
        if self._has_time_for("look"):
            return False
        plans = format_count(len(pending), "plan")
        self._add_note(f"out of time, not timed at {at_batch.place}: {plans}")
        return True

    def _confirm_leader(self, at_batch: PlacedTrials, *, rival: bool) -> bool:
        """Re-measure in fresh pairs who leads at a batch, or who leads at the search's own.

        A rival is what the leader must be apart from, for it to be said that they cross.
        """
        trials = at_batch.ledger.trials
        lead = next(iter(select_finalists(trials, at_batch.context.job.wanted)), None)
        if lead is None:
            return True
        if rival:
            latest = at_batch.ledger.find(lead.key, "final") or lead
            other = at_batch.ledger.find(self.study.best.key, "search")
            if other is None or other.key in (lead.key, trials[0].key):
                return True
            if is_clearly_faster(latest, other):
                return True
            lead = other
        if lead.ratio is None or at_batch.ledger.find(lead.key, "final") is not None:
            return True
        if not self._has_time_for("confirm"):
            return False
        try:
            with self._track_duration("confirm"):
                at_batch.confirm_plan(lead)
        except BaselineFailed as error:
            self._add_note(f"the original failed at {at_batch.place}: {error.failure.reason}")
        return True

    def _has_time_for(self, kind: str) -> bool:
        return self.remaining_s() > self._longest.get(kind, 0.0)

    @contextmanager
    def _track_duration(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._longest[kind] = max(self._longest.get(kind, 0.0), time.monotonic() - began)

    def _add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.sink(Note(text))


_PATIENCE_S = 300.0  # that a request to another machine may take: how fast it is nobody knows
_ALIKE_DB = 40.0
"""Answers this near to those that were scored have their scores (as golden samples have)."""


@dataclass
class Visit:
    """Times finalists on machines in turns with the original, each machine by itself.

    Attributes:
        seconds: For all machines together.
        notes: What went wrong, a line a machine.
    """

    context: Context
    study: Study
    seconds: float
    sink: Sink
    notes: list[str] = field(default_factory=list)

    def run(self, executor: str) -> None:
        """Time what was accepted here; a machine that is not reached is a note."""
        plans = [trial for trial in self.study.final if self.study.accepts(trial)]
        if not plans:
            self._add_note("no plan was accepted, so none was timed on other machines")
            return
        golden.write_inputs(self.context)
        for trial in plans:
            golden.ensure_outputs(self.study, trial)
        with open_devices(executor) as devices:
            turns = len(devices) * len(plans) * stats.PAIRS
            pair_seconds = min(4.0, max(0.5, self.seconds / turns))
            for device in devices:
                if device.name == self.context.job.environment:
                    continue  # the search was made there
                try:
                    with open_device(device) as environment:
                        self._visit(device, environment, plans, pair_seconds)
                except (LinkLost, WorkerFailed, OrtuneError) as error:
                    self._add_note(f"on {device.name}: {str(error).splitlines()[0]}")

    def _add_note(self, text: str) -> None:
        self.notes.append(text)
        self.sink(Note(text, warning=True))

    def _visit(
        self, device: Device, environment: str, plans: list[Trial], pair_seconds: float
    ) -> None:
        context, root = self.context, self.context.root / "machines" / device.name
        offer = require_backend(context.job.baseline, environment)
        job = replace(
            context.job,
            environment=environment,
            on="",
            machine=offer.machine,
            versions=offer.versions,
        )
        former = read_header(root)
        if former is not None and (changed := describe_difference(former.job, job)):
            raise BadSettings(
                f"{root} holds times of another machine: {changed}", fix="remove that folder"
            )
        root.mkdir(parents=True, exist_ok=True)
        write_header(root, replace(self.study.header, job=job))
        ledger = Ledger(root)
        ledger.set_aside(lambda trial: trial.interruption is not None)
        there = replace(
            context, job=job, deadlines=Deadlines(), timeout_s=_PATIENCE_S, shared=None, ahead=None
        )
        name = f"on {device.name}"
        placed = PlacedTrials(name, there, ledger, pair_seconds, self.sink, self.study.trials)
        if not ledger.trials:
            with placed.start_original() as (live, _):
                placed.time_original(self.study.baseline, live)
        for trial in plans:
            if ledger.find(trial.key, "final") is None:
                alike = self._answers_alike(trial, environment, root)
                placed.confirm_plan(trial if alike else replace(trial, scores=()))
        write_ending(root, Ending(finished="done", strict=self.study.strict))

    def _answers_alike(self, trial: Trial, environment: str, folder: Path) -> bool:
        """Whether a plan answers there as where it was scored; where not, it is scored there.

        One that does not run there has nothing to be scored: timing it tells why.
        """
        root = self.context.root
        for name, source in self.study.models.items():
            inputs = golden.inputs_path(root, name)
            expected = list(stream.Stream(golden.outputs_path(root, name, trial)))
            expected = expected[: len(stream.Stream(inputs))]
            model = golden.find_built_model(root, trial, Path(source))
            job = single_model_job(
                model, trial.plan.backend, inputs, folder, "golden", environment=environment
            )
            path = folder / f"{name or 'model'}.{trial.key}.stream"
            try:
                actual = list(compute_outputs(job, range(len(expected)), path))
            except WorkerFailed:
                continue
            finally:
                path.unlink(missing_ok=True)
            if compute_snr_db(expected, actual) < _ALIKE_DB:
                self.sink(Note(f"{trial.key[:8]} answers otherwise there: it is scored there"))
                return False
        return True
