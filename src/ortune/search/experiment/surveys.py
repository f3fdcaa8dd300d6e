"""Measure the regions of a plan one at a time: what each costs, and saves in time."""

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from ortune.backends.cpu import Cpu
from ortune.core.atomic_write import append_line, cut_torn, read_whole_lines, report_write_errors
from ortune.core.errors import BadData, OrtuneError, Refused, find_interruption
from ortune.core.event import Note, Progress, Sink
from ortune.core.plugins import codec, stored
from ortune.core.roles import before_rounding, find_deciding_step
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Interval, Plan
from ortune.core.workload import spread_indices
from ortune.data.stream import Stream
from ortune.graph.io import file
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, time_pair
from ortune.measurement.timing.turns import wait_until_ready
from ortune.metrics.snr import Snr
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import job_key
from ortune.search.experiment.ledger import read_trials
from ortune.search.experiment.measure import Files, build_all
from ortune.search.mixed_precision import costs
from ortune.search.mixed_precision.grouping import By
from ortune.search.mixed_precision.survey import (
    MixtureOutcome,
    RegionCost,
    SharedCost,
    Survey,
    SurveyRequest,
)
from ortune.search.mixed_precision.switched import (
    QuantizedRegions,
    load_for_step,
    quantize_regions,
)
from ortune.search.recipe.build import build_in
from ortune.search.recipe.space import trial_key

NAME = "regions.jsonl"
FOLDER = "surveys"  # in a run's folder, with a file ``KEY.jsonl`` a survey
_RECORDS: dict[str, type[Survey | MixtureOutcome]] = {"survey": Survey, "mixture": MixtureOutcome}


class RegionJournal:
    """What a run knows of regions; surveys that an earlier command saw cut short are no more."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        cut_torn(self._path)
        self.surveys: list[Survey] = []
        self.mixtures: list[MixtureOutcome] = []
        for record in read_journal(root):
            if isinstance(record, MixtureOutcome) or record.interruption is None:
                self._index_record(record)

    def add(self, record: Survey | MixtureOutcome) -> None:
        """Record it; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _RECORDS.items() if isinstance(record, cls))
        line = {kind: codec.encode(record)}
        append_line(self._path, json.dumps(line, separators=(",", ":")))
        self._index_record(record)

    def _index_record(self, record: Survey | MixtureOutcome) -> None:
        if isinstance(record, Survey):
            self.surveys.append(record)
        else:
            self.mixtures.append(record)


def read_journal(root: Path) -> list[Survey | MixtureOutcome]:
    """Return what a run's journal holds; a last line that is being written is left out.

    Raises:
        BadData: It cannot be read, or holds settings that a file may not set.
    """
    path, records = root / NAME, []
    lines = read_whole_lines(path)
    try:
        for line in lines:
            ((kind, fields),) = stored.parse_json(line).items()
            if kind not in _RECORDS:
                raise ValueError(f"'{kind}' is no record of regions")
            stored.demand_safe_data(fields, kind, fix=stored.DISTRUST, signed=True)
            records.append(codec.decode(_RECORDS[kind], fields))
        return records
    except OrtuneError as error:
        raise BadData(f"{path} cannot be read: {error.what}", fix=error.fix) from None
    except (ValueError, AttributeError) as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None


# --- progress of one survey ---------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyStart:
    """How a survey takes its costs.

    Attributes:
        samples: That each region is run on: places among those of the search.
        whole: What all regions cost together.
    """

    samples: tuple[int, ...]
    whole: Interval


@dataclass(frozen=True)
class PlanLatency:
    """The plan's latency over the original's, where no trial tells."""

    ratio: Interval


Entry: TypeAlias = SurveyStart | PlanLatency | costs.AccuracyCost | SharedCost
_ENTRIES: dict[str, type[Entry]] = {
    "begun": SurveyStart,
    "compared": PlanLatency,
    "cost": costs.AccuracyCost,
    "shared": SharedCost,
}


class SurveyProgress:
    """The measured parts of one survey.

    Attributes:
        shared: Two regions -> what of their costs is the same.
        seconds: That they took, those of a survey that was killed too.
    """

    def __init__(self, root: Path, key: str) -> None:
        """Read what there is; a torn last line is cut off.

        Raises:
            BadData: The file cannot be read, or an older version wrote it.
        """
        self._path = root / FOLDER / f"{key}.jsonl"
        self.begun: SurveyStart | None = None
        self.compared: PlanLatency | None = None
        self.costs: dict[str, costs.AccuracyCost] = {}
        self.shared: dict[tuple[str, str], SharedCost] = {}
        self.seconds = 0.0
        cut_torn(self._path)
        for line in read_whole_lines(self._path):
            try:
                content = stored.parse_json(line)
                seconds = float(content.pop("seconds"))
                ((kind, fields),) = content.items()
                entry = codec.decode(_ENTRIES[kind], fields)
            except (OrtuneError, ValueError, KeyError, AttributeError, TypeError) as error:
                why = error.what if isinstance(error, OrtuneError) else error
                where = f"{self._path} cannot be read: {why}"
                raise BadData(where, fix=f"remove {self._path}") from None
            self._index_entry(entry, seconds)

    def add(self, entry: Entry, seconds: float) -> None:
        """Record a part that took so long; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _ENTRIES.items() if isinstance(entry, cls))
        line = {kind: codec.encode(entry), "seconds": seconds}
        with report_write_errors(self._path):
            self._path.parent.mkdir(exist_ok=True)
        append_line(self._path, json.dumps(line, separators=(",", ":")))
        self._index_entry(entry, seconds)

    def _index_entry(self, entry: Entry, seconds: float) -> None:
        self.seconds += seconds
        match entry:
            case SurveyStart():
                self.begun = entry
            case PlanLatency():
                self.compared = entry
            case costs.AccuracyCost():
                self.costs[entry.region] = entry
            case SharedCost():
                self.shared[entry.one, entry.two] = entry


def sum_unfinished_s(root: Path, finished: Collection[str]) -> float:
    """Return the seconds that went into surveys which were killed, of a run."""
    keys = (path.stem for path in sorted((root / FOLDER).glob("*.jsonl")))
    return sum(SurveyProgress(root, key).seconds for key in keys if key not in finished)


LATE = "no time was left to measure it"  # the error of a region that was not reached
_ORACLE = Cpu(level="basic")
_PLANNED, _LATEST = 0.7, 0.95
"""Of a survey's time: how many samples are run is planned for this share, and no region is begun
after that."""
_PAIR_S = (1.0, 4.0)
"""Seconds of the plan against the original, where no trial tells: fewest and most."""
_LITTLE = 0.01  # of what the whole costs, below which what neighbours may share is not asked for
_DRAFTS = "survey-"


def survey_plan(
    context: Context,
    target: SurveyRequest | Plan,
    seconds: float,
    sink: Sink,
    *,
    live: Worker,
    clock: Callable[[], float] = time.monotonic,
    by: By = "region",
) -> Survey:
    """Measure the regions of a plan; whatever happens to the plan is a survey.

    What was measured before the run was killed is not measured again.

    Args:
        target: The plan; its deciding quantizer must leave nodes out by name.
        seconds: That it may take; what does not fit is left unmeasured and says so.

    Raises:
        BaselineFailed: The original does not run any more.
    """
    plan = target.plan if isinstance(target, SurveyRequest) else target
    key = trial_key(job_key(context.job), plan)
    progress = SurveyProgress(context.root, key if by == "region" else f"{key}-{by}")
    began, spent = clock(), progress.seconds
    for killed in context.root.glob(f"{_DRAFTS}*"):
        shutil.rmtree(killed, ignore_errors=True)
    try:
        with TemporaryDirectory(dir=context.root, prefix=_DRAFTS) as folder:
            running = _Survey(
                context, plan, by, progress, folder=Path(folder), sink=sink, clock=clock
            )
            result = running.run(seconds, live)
    except BaselineFailed as error:
        if error.worker is live:
            raise
        result = _make_failed(key, plan, error, error.failure.reason)
    except WorkerFailed as error:
        result = _make_failed(key, plan, error, error.failure.reason)
    except OrtuneError as error:
        result = _make_failed(key, plan, error, error.what)
    if result.error:
        sink(Note(f"precision by region is not measured for {plan}: {result.error}"))
    return replace(result, key=key, seconds=spent + clock() - began)


def _make_failed(key: str, plan: Plan, error: Exception, why: str) -> Survey:
    """Return a survey of which nothing is known but why."""
    cause = find_interruption(error)
    return Survey(key, plan, (), math.nan, error=why, interruption=cause)


class _Survey:
    """One survey at work."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        by: By,
        progress: SurveyProgress,
        *,
        folder: Path,
        sink: Sink,
        clock: Callable[[], float],
    ) -> None:
        if list(context.models) != [MAIN]:
            raise Refused(
                "regions cannot be measured for several models together", fix="search one alone"
            )
        at = find_deciding_step(plan.recipe.steps)
        if at is None:
            raise Refused(f"no step of {plan.recipe.name} sets a precision", fix="add one")
        step = plan.recipe.steps[at]
        assert isinstance(step, Quantizer)
        self._context, self._plan, self._progress = context, plan, progress
        self._folder, self._sink, self._clock = folder, sink, clock
        self._step, self._before, self._by = step, plan.recipe.steps[:at], by
        self._last = clock()

    def run(self, seconds: float, live: Worker) -> Survey:
        """Take the regions' costs, and their times from the profile."""
        began = self._clock()
        live.unload()
        files = build_all(self._context, self._plan, self._sink)
        prepared = self._build_steps(self._before)
        forms, plain = self._make_forms(prepared)
        planned, latest = began + _PLANNED * seconds, began + _LATEST * seconds
        try:
            unit, whole = self._take_costs(forms, plain, files.paths[MAIN], planned, latest)
        except Refused:  # the joint model answers otherwise: each region in a model of its own
            forms, plain = self._make_forms(prepared, joint=False)
            unit, whole = self._take_costs(forms, plain, files.paths[MAIN], planned, latest)
        ratio = self._plan_ratio(files, live, began + seconds - self._clock())
        shares = costs.time_shares(
            load_for_step(prepared, self._step),
            [form.region for form in forms.all],
            self._context.by_operator,
        )
        regions = []
        for form in forms.all:
            region, cost = form.region, self._progress.costs.get(form.region.name)
            regions.append(
                RegionCost(
                    region.name,
                    region.nodes,
                    region.pattern,
                    region.ops,
                    costs.UNKNOWN if cost is None or cost.error else cost.cost,
                    costs.time_gained(shares[region.name], ratio) if form.changes else costs.NONE,
                    form.saved,
                    LATE if cost is None else cost.error,
                    region.layers,
                )
            )
        shared = tuple(self._progress.shared.values())
        return Survey("", self._plan, tuple(regions), whole, unit, shared=shared)

    def _build_steps(self, steps: Sequence[Step]) -> Path:
        """Return the model as some of the recipe's first steps make it."""
        context, recipe = self._context, Recipe("before", tuple(steps))
        cache, material = context.root / "artefacts", context.materials[MAIN]
        return build_in(cache, context.models[MAIN], recipe, material, sink=self._sink).path

    def _make_forms(self, prepared: Path, *, joint: bool = True) -> tuple[QuantizedRegions, Path]:
        """Return the forms, and the model in float that they were made of.

        With rounded weights the model that the deciding step gets is no model in float any
        more, unless rounding changed more than constants.
        """
        ranges = self._context.root / "artefacts" / "ranges" / file.compute_digest(prepared)[:16]
        self._sink(Progress("quantizing regions alone"))

        def quantize_from(plain: Path) -> tuple[QuantizedRegions, Path]:
            forms = quantize_regions(
                *(plain, self._step, self._context.materials[MAIN], self._folder),
                ranges=ranges,
                by=self._by,
                joint=joint,
                rounded=None if plain == prepared else prepared,
                sink=self._sink,
            )
            return forms, plain

        plain = self._build_steps(before_rounding(self._before))
        if plain != prepared:
            with suppress(Refused):
                return quantize_from(plain)
        return quantize_from(prepared)

    def _plan_ratio(self, files: Files, live: Worker, remaining_s: float) -> float:
        """Return the plan's latency over the original's: of its trial, or of a pair timed now.

        A pair takes what it needs of the survey's seconds. NaN where the time was up
        before any region was run.
        """
        trials = read_trials(self._context.root)
        for trial in trials:
            if trial.plan.spelling == self._plan.spelling and trial.ratio is not None:
                return trial.ratio.value
        if remaining_s <= 0 and not self._progress.costs:  # then nothing is told of any region
            return math.nan
        if self._progress.compared is None:
            effort = min(_PAIR_S[1], max(_PAIR_S[0], remaining_s))
            with measure.start_worker(
                self._context, files.paths, self._plan.backend, "regions"
            ) as worker:
                worker.take_turns_with(live)
                wait_until_ready(worker)
                pair = time_pair(live, worker, Effort(seconds=effort, decide=False, burst=0.1))
            self._record_entry(
                PlanLatency(stats.latency_ratio([pair], learnt=measure.pool_variance(trials)))
            )
        assert self._progress.compared is not None
        return self._progress.compared.ratio.value

    def _take_costs(
        self, forms: QuantizedRegions, plain: Path, whole: Path, planned: float, latest: float
    ) -> tuple[str, float]:
        """Run each region alone, then neighbours that lose much together, until the time is up.

        Args:
            plain: The model that the forms were made of.
            planned: As many samples are run as fit until then.
            latest: No region is begun after it.

        Returns:
            The unit of costs, and what the whole costs.
        """
        progress, metric = self._progress, self._context.budget.metric
        if self._context.evaluate:
            metric = Snr(share=0)
        begun = progress.begun
        complete = all(form.region.name in progress.costs for form in forms.all)
        if begun is not None and complete and not self._list_pairs(forms):
            return costs.Loss.for_metric(metric).unit, begun.whole.value
        if self._context.evaluate:  # what was recorded has no labels
            samples = costs.ScoredSamples(
                spread_indices(len(Stream(self._context.feeds[MAIN])), costs.MOST)
            )
        else:
            part = self._context.parts["search"]
            samples = costs.ScoredSamples(part.indices, part.labels)
        with costs.AccuracyRuns(
            forms, samples, metric, self._folder, self._start_worker, self._clock
        ) as runs:
            if begun is None:
                begun = SurveyStart(*runs.start_runs(max(0.0, planned - self._clock()), whole))
            else:
                runs.resume_runs(begun.samples)
            if forms.switches:
                runs.check_joint(plain)
            if progress.begun is None:
                self._record_entry(begun)
            for at, form in enumerate(forms.all):
                if form.region.name in progress.costs:
                    continue
                if form.changes and self._clock() > latest:
                    break
                self._sink(Progress("running regions alone", at, len(forms.all)))
                self._record_entry(runs.measure_alone(form))
            for first, second in self._list_pairs(forms):
                if self._clock() > latest:
                    break
                both = runs.measure_together(
                    (forms.find_region(first), forms.find_region(second))
                ).value
                single = [progress.costs[name].cost.value for name in (first, second)]
                shared = max(0.0, min(*single, sum(single) - both))
                self._record_entry(SharedCost(first, second, shared))
        return runs.loss.unit, begun.whole.value

    def _record_entry(self, entry: Entry) -> None:
        last, self._last = self._last, self._clock()
        self._progress.add(entry, self._last - last)

    def _list_pairs(self, forms: QuantizedRegions) -> list[tuple[str, str]]:
        """Return the neighbours whose shared cost is not known and may be much, the most first."""
        progress = self._progress
        if progress.begun is None:
            return []
        losses = {n: cost.cost.value for n, cost in progress.costs.items() if not cost.error}
        switched = {form.region.name for form in forms.all if form.switch is not None}
        lesser = {
            pair: min(losses[name] for name in pair)
            for pair in forms.pairs
            if pair not in progress.shared and set(pair) <= losses.keys() & switched
        }
        least = _LITTLE * progress.begun.whole.value
        much = (pair for pair in lesser if lesser[pair] > least)
        return sorted(much, key=lambda pair: -lesser[pair])

    def _start_worker(self, path: Path, label: str) -> Worker:
        context = self._context
        backend = replace(_ORACLE, custom_ops=context.materials[MAIN].custom_ops)
        folder = worker_folder(context.root / "workers", label)
        job = context.worker_job({MAIN: path}, backend, folder)
        return Worker(
            job,
            timeout_s=max(context.timeout_s, context.deadlines.judged_s),
            memory_limit=context.memory_limit,
        )
