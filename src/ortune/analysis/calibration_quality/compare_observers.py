"""Which observer keeps the answers of a quantized model best.

Every observer answers the same probes on the calibration part of the data; the quantizer builds a
model with each, and all are scored on samples that none of them has seen, against the float model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.analysis.calibration_quality.calibrate import collect_probes, parse_quantizer
from ortune.analysis.calibration_quality.requests import CompareObservers
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Progress, Sink, collect_notes
from ortune.core.metric import Kind, Metric, stack_records
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.step import Quantizer, Recipe
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Score
from ortune.core.wording import shorten_groups
from ortune.core.workload import spread_indices
from ortune.data import augment as augmenting
from ortune.data.feeds import Feeds
from ortune.measurement.accuracy import judge_accuracy
from ortune.measurement.job import MAIN
from ortune.measurement.process import WorkerFailed, require_backend
from ortune.measurement.timing.turns import wait_until_ready
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.snr import Snr
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.calibration.calibrate import calibrate_groups
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.scores import collect_records
from ortune.search.recipe.build import Material, build_in

Records = NDArray[np.float64]


@dataclass(frozen=True)
class ObserverScore:
    """One way of calibrating."""

    observer: str
    augment: str  # spelled; empty for the samples as they are
    seconds: float = 0.0
    score: Score | None = None  # by the budget's metric, against the float model
    snr: float | None = None  # dB against the float model's outputs
    # ``best``, ``not worse`` (within the noise of the first), ``lower snr`` (the metric cannot
    # tell), ``worse`` or ``failed``.
    standing: str = "failed"
    error: str = ""
    records: tuple[Records, Records] | None = field(default=None, repr=False, compare=False)


def rank_observers(
    rows: Sequence[ObserverScore], budget: Budget, groups: Sequence[str] | None
) -> tuple[list[ObserverScore], str, str]:
    """Order rows and name the one that beats all others in the paired test, at 95 %.

    The budget's metric decides; rows that it cannot tell apart are asked for their SNR.

    Returns:
        The rows with their standing, the best one's name (empty when there is none), and the
        metric by which it is.
    """
    scored = [row for row in rows if row.records is not None and not math.isnan(_read_score(row))]
    sign = 1 if budget.metric.higher_is_better else -1
    scored.sort(key=lambda row: (-sign * _read_score(row), -(row.snr or 0.0)))
    failed = [row for row in rows if not any(row is other for other in scored)]
    if not scored:
        return failed, "", ""
    equal = _select_unbeaten(scored, budget.metric, 0, groups)
    ahead = equal
    best, by = (equal[0], str(budget.metric)) if len(equal) == 1 else (None, "")
    if best is None and budget.metric.name() != "snr":
        snr = Snr()
        by_snr = sorted(equal, key=lambda row: -(row.snr or 0.0))
        ahead = _select_unbeaten(by_snr, snr, 1, groups)
        best, by = (ahead[0], str(snr)) if len(ahead) == 1 else (None, "")
    if len(scored) == 1:
        best, by = None, ""
    ranked = [replace(row, standing=_classify_standing(row, best, ahead, equal)) for row in scored]
    return [*ranked, *failed], format_row_name(best) if best else "", by


def format_row_name(row: ObserverScore) -> str:
    """Name a row."""
    return f"{row.observer} with {row.augment}" if row.augment else row.observer


def _classify_standing(
    row: ObserverScore,
    best: ObserverScore | None,
    ahead: Sequence[ObserverScore],
    equal: Sequence[ObserverScore],
) -> str:
    if row is best:
        return "best"
    if any(row is other for other in ahead):
        return "not worse"
    return "lower snr" if any(row is other for other in equal) else "worse"


def _select_unbeaten(
    rows: Sequence[ObserverScore], metric: Metric, place: int, groups: Sequence[str] | None
) -> list[ObserverScore]:
    """Return the first row and those that it does not beat beyond the noise."""
    first, *remaining_rows = rows
    unbeaten = [first]
    for other in remaining_rows:
        if first.records is None or other.records is None:
            raise AssertionError("only scored rows are ranked")
        figure = metric
        if isinstance(metric, Fidelity) and metric.kind(first.records[place]) is Kind.SHARE:
            figure = replace(metric, share=0.0)
        even = Budget(figure, 0.0, relative=True)
        score = judge_accuracy(even, first.records[place], other.records[place], groups)
        better = score.low > score.base if metric.higher_is_better else score.high < score.base
        if not better:
            unbeaten.append(other)
    return unbeaten


def _read_score(row: ObserverScore) -> float:
    return row.score.value if row.score else math.nan


_SECONDS = 3600.0

Calibrated: TypeAlias = list[tuple[str, Feeds, Sequence[int]]]
"""Altered copies that samples hold too, the samples, and the places of those to calibrate on."""


@dataclass(frozen=True, repr=False)
class ObserverRanking(TableResult):
    """What `compare_observers` found.

    Attributes:
        rows: The best score first; those that failed last.
        best: Observer that beats every other beyond the noise; empty when none does.
        by: Metric by which it does: the budget's, else snr.
        calibrated: Samples that were observed, without copies.
        overlap: These are the same samples, as there are too few.
    """

    headline = ("model", "best", "by", "budget", "calibrated", "scored")

    model: str
    quantizer: str
    rows: tuple[ObserverScore, ...]
    best: str
    by: str
    budget: str
    budget_rule: str
    calibrated: int
    scored: int
    overlap: bool
    notes: tuple[str, ...]

    def result(self) -> dict[str, Any]:
        """Return what ``--json`` shows; see ``docs/cli.md``."""
        rows = [codec.encode(replace(row, records=None)) for row in self.rows]
        for row in rows:
            del row["records"]
        return {k: codec.encode(v) for k, v in vars(self).items() if k != "rows"} | {"rows": rows}


def run(request: CompareObservers) -> ObserverRanking:
    """Score all observers on samples that were not observed."""
    steps = {text: parse_quantizer(request.step, text) for text in request.observers}
    ways = augmenting.parse_augmentations(request.augment) if request.augment else ()
    backend = parse_plugin(Backend, request.backends)
    require_backend(backend)
    notes: list[str] = []
    with open_temporary_folder() as folder:
        experiment = Experiment(
            models={MAIN: Path(request.model)},
            data=request.source,
            labels=request.labels,
            calibration=request.calibration,
            sequence=request.sequence,
            state=tuple(request.state),
            shapes=request.shapes,
            budget=request.read_budget(),
            baseline=Cpu(custom_ops=backend.custom_ops),
            time=_SECONDS,
        )
        context = prepare_context(experiment, folder, collect_notes(notes, request.sink))
        # What is calibrated on: the samples, and the samples with altered copies.
        samples = request.samples or 0
        material = context.materials[MAIN]
        fed, places = material.feeds, material.calibration
        assert fed is not None, "a request without --data is refused"
        indices = tuple(places[k] for k in spread_indices(len(places), samples or len(places)))
        calibrated: Calibrated = [("", fed, indices)]
        if ways:
            more = augmenting.augment_samples(fed, indices, ways, folder)
            calibrated.append((request.augment, more, range(more.count)))
        backend = backend.leave_out(context.agreement.disable, context.agreement.level)
        contest = _Contest(Path(request.model), context, backend, request.sink)
        ranked, best, by = contest.rank_steps(steps, calibrated)
    observed = calibrated[0][2]
    return ObserverRanking(
        model=str(request.model),
        quantizer=request.step,
        rows=tuple(ranked),
        best=best,
        by=by,
        budget=str(context.budget),
        budget_rule=context.job.budget_rule,
        calibrated=len(observed),
        scored=len(contest.scored),
        overlap=request.calibration is None and bool(contest.scored & set(observed)),
        notes=tuple(notes),
    )


compare_observers = make_verb(CompareObservers, run)


class _Contest:
    """What every row shares."""

    def __init__(self, model: Path, context: Context, backend: Backend, sink: Sink) -> None:
        self._model, self._context, self._backend, self._sink = model, context, backend, sink
        self.parts = context.evaluation_parts()
        self.scored = {index for part in self.parts for index in part.indices}
        self._base = stack_records([part.records for part in self.parts])
        self._groups = [name for part in self.parts for name in part.groups or ()] or None
        self._count = 0

    def rank_steps(
        self, steps: Mapping[str, Quantizer], calibrated: Calibrated
    ) -> tuple[list[ObserverScore], str, str]:
        """Score every step on every set of samples; see `rank_observers`."""
        rows: list[ObserverScore] = []
        for copies, feeds, indices in calibrated:
            for text, step in steps.items():
                total = len(calibrated) * len(steps)
                self._sink(Progress("scoring observers", len(rows), total))
                rows.append(self._score_row(ObserverScore(text, copies), step, feeds, indices))
        return rank_observers(rows, self._context.budget, self._groups)

    def _score_row(
        self, row: ObserverScore, step: Quantizer, feeds: Feeds, indices: Sequence[int]
    ) -> ObserverScore:
        """Calibrate, build and score; what goes wrong is a row too."""
        self._count += 1
        try:
            folder = self._context.root / f"observer-{self._count}"
            quantizer_probes = collect_probes(self._model, step)
            result = calibrate_groups(
                quantizer_probes.model, quantizer_probes.probes, feeds.stream, [indices], folder
            )
            ranges = result.ranges[0]
            kept = ranges_file.make_entries(
                ranges, quantizer_probes.probes, str(quantizer_probes.observer)
            )
            saved_ranges = ranges_file.SavedRanges(
                row.observer,
                f"{row.observer}{row.augment}",
                {entry.name: entry for entry in kept},
                observer=str(quantizer_probes.observer),
                unanswered=tuple(p.tensor for p in quantizer_probes.probes if p.key not in ranges),
            )
            material = Material(feeds, tuple(indices), saved_ranges, self._backend.custom_ops)
            built = build_in(folder, self._model, Recipe("compare", (step,)), material)
            tables = self._collect_model_records(built.path)
            score = judge_accuracy(
                self._context.budget, tables[0], self._base, self._groups, proof=()
            )
            snr = Snr().aggregate(tables[1])
            row = replace(row, seconds=result.seconds, score=score, snr=snr, records=tables)
        except WorkerFailed as error:
            row = replace(row, error=error.failure.reason)
        except OrtuneError as error:
            row = replace(row, error=error.what)
        text = row.error
        if row.score:
            text = f"{shorten_groups(row.score.metric)} {row.score.value:.4g}"
        self._sink(Note(f"{format_row_name(row)}: {text}"))
        return row

    def _collect_model_records(self, path: Path) -> tuple[Records, Records]:
        """Return the records of a built model: the budget's metric, then SNR."""
        metrics: list[Metric] = [self._context.budget.metric, Snr()]
        paths = dict.fromkeys(self._context.models, path)
        with measure.start_worker(self._context, paths, self._backend, "observer") as worker:
            wait_until_ready(worker)
            part_records = [
                collect_records(worker, metrics, part, self._context.scoring_s(part))
                for part in self.parts
            ]
        budget_records, snr = (stack_records(rows) for rows in zip(*part_records, strict=True))
        return budget_records, snr
