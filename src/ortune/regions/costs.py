"""What each region costs in accuracy alone: forward runs on a few samples."""

from __future__ import annotations

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
from ortune.core.workload import spread
from ortune.measurement.process import Worker, WorkerFailed
from ortune.metrics.snr import Snr
from ortune.recipe.compare import EXACT_DB
from ortune.regions.forms import Form, Forms
from ortune.regions.losses import Floats, Loss, interval
from ortune.regions.switched import SWITCHES

MOST = 32
"""Samples at most."""
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
    """

    indices: tuple[int, ...]
    labels: tuple[Any, ...] | None = None

    def thinned(self, count: int) -> Scored:
        """Return at most so many of them, spread over all."""
        kept = spread(len(self.indices), count)
        labels = None if self.labels is None else tuple(self.labels[at] for at in kept)
        return Scored(tuple(self.indices[at] for at in kept), labels)


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

    Use as a context manager; `begin` comes first.

    Attributes:
        loss: How a loss is taken.
        samples: How many samples each region is run on, once it has begun.
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
        self._forms, self._scored, self._folder = forms, scored, folder
        self._start, self._clock = start, clock
        self._stack = ExitStack()
        self._expected = (folder / "float.stream").resolve()

    def __enter__(self) -> Self:
        self._worker = self._stack.enter_context(self._start(self._forms.joint, "regions"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def samples(self) -> int:
        """How many samples each region is run on."""
        return len(self._scored.indices)

    def begin(self, seconds: float, samples: int = 0) -> None:
        """Run the float model: its outputs are what all others are compared with.

        Args:
            seconds: That all regions may take; fewer samples are run where it is little.
            samples: How many, as a survey that goes on has begun; 0 for what fits.

        Raises:
            WorkerFailed: The model does not run.
        """
        self._scored = self._scored.thinned(samples or MOST)
        self._worker.ask("load")
        self._save(self._worker, self._scored.indices[:1])
        began = self._clock()
        self._save(self._worker, self._scored.indices[:2])
        each = max(1e-6, self._clock() - began) / len(self._scored.indices[:2])
        if not samples:
            fits = int(seconds / (each * (1 + _PAIRED * len(self._forms.all))))
            self._scored = self._scored.thinned(max(FEWEST, min(MOST, fits)))
        self._save(self._worker, self._scored.indices)
        self._base = self._records(self._worker)[0]

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
                losses = self._of(form.path, "alone")
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

    def whole(self, path: Path) -> Interval:
        """Return what a whole model costs on the same samples.

        Raises:
            WorkerFailed: It does not run.
        """
        return interval(self._of(path, "whole"))

    def _of(self, path: Path, label: str) -> Floats:
        with self._start(path, label) as worker:
            worker.ask("load")
            return self._losses(worker)

    def _losses(self, worker: Worker, *on: int) -> Floats:
        records, powers = self._records(worker, *on)
        return self.loss.each(records, powers, self._base)

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
