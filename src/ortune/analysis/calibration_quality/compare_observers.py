"""The public verb: which way to read ranges off the data keeps the answers best?

Every observer answers the same probes on the calibration part of the data; the quantizer builds a
model with each, and all are scored on samples that none of them has seen, against the float model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ortune.analysis.calibration_quality.probes import probes, settled
from ortune.analysis.calibration_quality.ranking import Records, Row, named, rank
from ortune.backends.cpu import Cpu
from ortune.calibration import ranges_file
from ortune.calibration.calibrate import calibrate_groups
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Event, Note, Sink, silent
from ortune.core.metric import Metric
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe
from ortune.core.workload import spread
from ortune.data import augment as augmenting
from ortune.data.feeds import Feeds
from ortune.experiment import measure
from ortune.experiment.context import Context
from ortune.experiment.prepare import prepare
from ortune.experiment.request import Request
from ortune.measurement.accuracy import judge
from ortune.measurement.capabilities import demand
from ortune.measurement.job import MAIN
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import ready
from ortune.metrics.snr import Snr
from ortune.recipe.build import Material, build_in

OBSERVERS = (
    "min-max",
    "min-max(average=0.05)",
    "percentile(p=99.9)",
    "percentile(p=99.99)",
    "percentile(p=99.999)",
    "entropy",
    "mse",
)
"""What is tried if nothing else is asked for."""
_SECONDS = 3600.0


@dataclass(frozen=True)
class Ranking:
    """What `compare_observers` found.

    Attributes:
        rows: The best score first; those that failed last.
        best: Observer that beats every other beyond the noise; empty when none does.
        by: Metric by which it does: the budget's, else snr.
        calibrated: Samples that were observed, without copies.
        scored: Samples that were scored.
        overlap: These are the same samples, as there are too few.
    """

    model: str
    quantizer: str
    rows: tuple[Row, ...]
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


def compare_observers(
    model: str | Path,
    *,
    data: str | Path | Callable[[], Any],
    labels: str | Path | None = None,
    calibration: str | Path | Callable[[], Any] | None = None,
    budget: str | None = None,
    observers: Sequence[str] = OBSERVERS,
    quantizer: str = "int8-static",
    samples: int = 0,
    augment: str = "",
    on: str = "cpu",
    sink: Sink = silent,
) -> Ranking:
    """Calibrate and quantize with each observer, and score all on samples that were not observed.

    Args:
        model: The model file.
        data: Samples; a part of them is calibrated on, the rest is scored.
        labels: File with one label a sample.
        calibration: Samples to calibrate on, apart from `data`.
        budget: Says the metric; derived from the outputs when None.
        observers: Spelled with their fields.
        quantizer: Spelled with its fields; its observer is the one that is exchanged.
        samples: Most samples to calibrate on; 0 for all of that part.
        augment: Calibrate also with altered copies, in rows of their own.
        on: Backend that the quantized models run on.
        sink: Receives notes, one for every observer.

    Raises:
        OrtuneError: The model, the data or a spelling cannot be used.
    """
    steps = {text: settled(quantizer, text) for text in observers}
    ways = augmenting.read(augment) if augment else ()
    backend = parse(Backend, on)
    demand(backend)
    request = Request(
        model,
        data=data,
        labels=labels,
        calibration=calibration,
        budget=budget,
        baseline=Cpu(custom_ops=backend.custom_ops),
        time=_SECONDS,
    )
    notes: list[str] = []
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        context = prepare(request, folder, _keeping(notes, sink))
        fed, indices = _calibration(context, samples)
        contest = _Contest(Path(model), context, backend, sink)
        rows = [contest.row(Row(text, ""), step, fed, indices) for text, step in steps.items()]
        if ways:
            more = augmenting.augment(fed, indices, ways, folder)
            everything = tuple(range(more.count))
            rows += [
                contest.row(Row(text, augment), step, more, everything)
                for text, step in steps.items()
            ]
        scored = {index for part in contest.parts for index in part.indices}
        ranked, best, by = rank(rows, context.budget, contest.groups)
    return Ranking(
        str(model),
        quantizer,
        tuple(ranked),
        best,
        by,
        str(context.budget),
        context.job.budget_rule,
        len(indices),
        len(scored),
        calibration is None and bool(scored & set(indices)),
        tuple(notes),
    )


def _calibration(context: Context, samples: int) -> tuple[Feeds, tuple[int, ...]]:
    """Return what is calibrated on."""
    material = context.materials[MAIN]
    if material.feeds is None or not material.calibration:
        raise BadSettings("nothing is there to calibrate on", fix="give samples with --data")
    places = material.calibration
    chosen = spread(len(places), samples or len(places))
    return material.feeds, tuple(places[k] for k in chosen)


def _keeping(notes: list[str], sink: Sink) -> Sink:
    def kept(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        sink(event)

    return kept


class _Contest:
    """What every row shares."""

    def __init__(self, model: Path, context: Context, backend: Backend, sink: Sink) -> None:
        self._model, self._context, self._backend, self._sink = model, context, backend, sink
        self.parts = context.evaluation()
        self._base = np.concatenate([part.records for part in self.parts])
        self.groups = [name for part in self.parts for name in part.groups or ()] or None
        self._count = 0

    def row(self, row: Row, step: Quantizer, feeds: Feeds, indices: Sequence[int]) -> Row:
        """Calibrate, build and score; what goes wrong is a row too."""
        self._count += 1
        try:
            row = self._scored(row, step, feeds, indices)
        except WorkerFailed as error:
            row = replace(row, error=error.failure.reason)
        except OrtuneError as error:
            row = replace(row, error=error.what)
        said = f"{row.score.metric} {row.score.value:.4g}" if row.score else row.error
        self._sink(Note(f"{named(row)}: {said}"))
        return row

    def _scored(self, row: Row, step: Quantizer, feeds: Feeds, indices: Sequence[int]) -> Row:
        folder = self._context.root / f"observer-{self._count}"
        asked = probes(self._model, step)
        found = calibrate_groups(asked.model, asked.probes, feeds.stream, [indices], folder)
        ranges = found.ranges[0]
        kept = ranges_file.entries(ranges, asked.probes, str(asked.observer))
        known = ranges_file.SavedRanges(
            row.observer,
            f"{row.observer}{row.augment}",
            {entry.name: entry for entry in kept},
            observer=str(asked.observer),
            unanswered=tuple(p.tensor for p in asked.probes if p.key not in ranges),
        )
        material = Material(feeds, tuple(indices), known, self._backend.custom_ops)
        built = build_in(folder, self._model, Recipe("compare", (step,)), material)
        tables = self._tables(built.path)
        score = judge(self._context.budget, tables[0], self._base, self.groups)
        snr = Snr().aggregate(tables[1])
        found_at = (tables[0], tables[1])
        return replace(row, seconds=found.seconds, score=score, snr=snr, records=found_at)

    def _tables(self, path: Path) -> list[Records]:
        """Return the records of a built model: the budget's metric, then SNR."""
        metrics: list[Metric] = [self._context.budget.metric, Snr()]
        paths = dict.fromkeys(self._context.models, path)
        with measure.start(self._context, paths, self._backend, "observer") as worker:
            ready(worker)
            found = [measure.records(self._context, worker, metrics, part) for part in self.parts]
        return [np.concatenate(rows) for rows in zip(*found, strict=True)]
