"""What each region costs in accuracy alone: forward runs on a few samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from ortune.core.errors import OrtuneError, Refused
from ortune.core.metric import Metric
from ortune.core.trial import Interval
from ortune.measurement.process import Worker, WorkerFailed
from ortune.metrics.snr import Snr
from ortune.recipe.compare import EXACT_DB
from ortune.regions.forms import Form, Forms
from ortune.regions.losses import Floats, Loss, interval
from ortune.regions.sampling import Subset, evenly, telling
from ortune.regions.switched import SWITCHES

MOST = 32
"""Samples at most that each region is run on."""
LOOKED_AT = 512
"""Samples at most that the whole plan is run on, to choose those of the regions."""
_LOOK = 0.2
"""Of the time of all regions, that choosing their samples may take."""
_SCALES = 2.0
"""Largest change of weights, so that the drawn samples' mean of the whole is that of all."""
_PAIRED = 1.3
"""Runs a region, with those of neighbours that lose much."""
FEWEST = 4
"""Samples that are run however little time there is."""
Start: TypeAlias = Callable[[Path, str], Worker]
"""Starts a worker on a model, with a label for its folder."""
NONE = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Scored:
    """The samples that costs are taken on.

    Attributes:
        indices: Into the stream that workers have.
        labels: One an index, or None.
        weights: One an index: the mean of weight times loss is what is asked for.
    """

    indices: tuple[int, ...]
    labels: tuple[Any, ...] | None = None
    weights: tuple[float, ...] = ()

    def some(self, drawn: Subset) -> Scored:
        """Return those that were drawn, with their weights."""
        labels = None if self.labels is None else tuple(self.labels[at] for at in drawn.places)
        return Scored(tuple(self.indices[at] for at in drawn.places), labels, drawn.weights)


@dataclass(frozen=True)
class AccuracyCost:
    """What a region costs alone.

    Attributes:
        error: Why it could not be run; empty where it was.
    """

    region: str
    cost: Interval
    saved: int = 0
    error: str = ""


class AccuracyRuns:
    """The forms of regions at work: one session for all that stand in the joint model.

    Use as a context manager; `begin` or `go_on` comes first.

    Attributes:
        loss: How a loss is taken.
    """

    def __init__(
        self,
        forms: Forms,
        scored: Scored,
        metric: Metric,
        folder: Path,
        start: Start,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loss = Loss.of(metric)
        self._forms, self._every, self._folder = forms, scored, folder
        self._scored = scored
        self._start, self._clock = start, clock
        self._stack = ExitStack()
        self._expected = (folder / "float.stream").resolve()

    def __enter__(self) -> Self:
        self._worker = self._stack.enter_context(self._start(self._forms.joint, "regions"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, seconds: float, whole: Path) -> tuple[Subset, Interval]:
        """Choose samples by what the whole plan loses on them, and run the float model on these.

        Args:
            seconds: That all regions may take; fewer samples are run where it is little.
            whole: The plan's model.

        Returns:
            The chosen samples, to `go_on` with, and what the whole costs.

        Raises:
            WorkerFailed: A model does not run.
        """
        self._worker.ask("load")
        each = self._seconds_each()
        count = int(seconds / (each * (1 + _PAIRED * len(self._forms.all))))
        count = max(FEWEST, min(MOST, count))
        look = min(LOOKED_AT, max(count, int(_LOOK * seconds / (2 * each))))
        wide = evenly(len(self._every.indices), look)
        self._run_float(wide)
        with self._start(whole, "whole") as worker:
            worker.ask("load")
            records, powers = self._records(worker)
        losses = self.loss.each(records, powers, self._base)
        near = telling(losses, count)
        rows = list(near.places)
        again = self.loss.each(records[rows], powers[rows], self._base[rows])
        scale = _scale(losses, again * near.weights)
        weights = tuple(scale * weight for weight in near.weights)
        drawn = Subset(tuple(wide.places[at] for at in near.places), weights)
        self._run_float(drawn)
        return drawn, interval(losses)

    def go_on(self, drawn: Subset) -> None:
        """Run the float model on samples that were chosen before.

        Raises:
            WorkerFailed: The model does not run.
        """
        self._worker.ask("load")
        self._run_float(drawn)

    def check(self, plain: Path) -> None:
        """Compare the joint model without a switch on with the float model that it was made of.

        Raises:
            Refused: They differ.
            WorkerFailed: One does not run.
        """
        indices = self._scored.indices[:2]
        with self._start(plain, "float") as worker:
            worker.ask("load")
            kept = self._folder / "plain.stream"
            worker.ask("score", indices=indices, metrics=[], save=str(kept.resolve()))
        answer = self._worker.ask(
            "score",
            indices=indices,
            metrics=[Snr(share=0)],
            expected=str(kept.resolve()),
            given=self._given(),
        )
        same = Snr(share=0).aggregate(np.asarray(answer["records"][0], np.float64))
        if not same >= EXACT_DB:
            raise Refused(
                f"with all switches off the model answers {same:.0f} dB off",
                fix="build the regions one by one",
            )

    def alone(self, form: Form) -> AccuracyCost:
        """Return what a region costs with all others in float."""
        name = form.region.name
        if form.error or not form.changes:
            return AccuracyCost(name, NONE, 0, form.error)
        try:
            if form.switch is not None:
                losses = self._losses(self._worker, form.switch)
            else:
                assert form.path is not None
                with self._start(form.path, "alone") as worker:
                    worker.ask("load")
                    losses = self._losses(worker)
        except WorkerFailed as error:
            if not self._worker.alive:
                raise
            return AccuracyCost(name, NONE, form.saved, error.failure.reason)
        except OrtuneError as error:
            return AccuracyCost(name, NONE, form.saved, error.what)
        return AccuracyCost(name, interval(losses), form.saved)

    def together(self, forms: Sequence[Form]) -> Interval:
        """Return what regions cost together, all others in float.

        Raises:
            Refused: One of them does not stand in the joint model.
        """
        if any(form.changes and form.switch is None for form in forms):
            raise Refused("a region stands in a model of its own", fix="build them together")
        on = [form.switch for form in forms if form.switch is not None]
        return interval(self._losses(self._worker, *on))

    def _seconds_each(self) -> float:
        """Return what the float model takes a sample."""
        first = self._every.indices[:2]
        self._save(self._worker, first[:1])
        began = self._clock()
        self._save(self._worker, first)
        return max(1e-6, self._clock() - began) / len(first)

    def _run_float(self, drawn: Subset) -> None:
        """Run the float model: its outputs are what all others are compared with."""
        self._scored = self._every.some(drawn)
        self._save(self._worker, self._scored.indices)
        if self.loss.own:
            self._base = self._records(self._worker)[0]
        else:  # noise is taken over the signal alone
            self._base = np.zeros((len(self._scored.indices), 1))

    def _losses(self, worker: Worker, *on: int) -> Floats:
        records, powers = self._records(worker, *on)
        return self.loss.each(records, powers, self._base) * self._scored.weights

    def _records(self, worker: Worker, *on: int) -> tuple[Floats, Floats]:
        own = [self.loss.metric] if self.loss.own else []
        answer = worker.ask(
            "score",
            indices=self._scored.indices,
            metrics=[Snr(), *own],
            expected=str(self._expected),
            labels=self._labels() if self.loss.own else None,
            given=self._given(*on) if worker is self._worker else {},
        )
        powers, *more = (np.asarray(rows, np.float64) for rows in answer["records"])
        return (more[0] if more else powers), powers

    def _save(self, worker: Worker, indices: Sequence[int]) -> None:
        path = str(self._expected)
        worker.ask("score", indices=indices, metrics=[], save=path, given=self._given())

    def _given(self, *on: int) -> dict[str, list[bool]]:
        count = self._forms.switches
        return {SWITCHES: [at in on for at in range(count)]} if count else {}

    def _labels(self) -> list[Any] | None:
        found = self._scored.labels
        if found is None:
            return None
        return [one.tolist() if isinstance(one, np.ndarray | np.generic) else one for one in found]


def _scale(many: Floats, drawn: Floats) -> float:
    """Return what makes the drawn's mean loss that of the many; 1 where it tells nothing."""
    wanted, found = float(np.mean(many)), float(np.mean(drawn))
    if not (math.isfinite(wanted) and math.isfinite(found)) or min(wanted, found) <= 0:
        return 1.0
    return min(_SCALES, max(1 / _SCALES, wanted / found))
