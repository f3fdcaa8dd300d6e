"""Loaded models, called like functions."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine.batching import Statistics
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.manifest import PackedPlan, Signature
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.metric import Kind, Metric, stack_records
from ortune.core.plugins import spelling
from ortune.core.result import Result
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import feeds
from ortune.data.sources import Source
from ortune.data.stream import Stream
from ortune.measurement.evidence import estimate_score, number_groups
from ortune.measurement.statistics import binomial, bootstrap
from ortune.metrics.common.fidelity import Fidelity


class Engine(Result):
    """One or several loaded models; any number of threads may call it. A context manager.

    Attributes:
        fallback: Why something else than a bundle's first plan runs, or than the plan that was
            asked for; empty when it does not.
        plan: The bundle's plan that runs; None for its original, for a backend that none of its
            plans was measured on, and for a plain model.
        compiled: Its models run as they were compiled when the bundle was packed.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        backend: Backend,
        resources: ExitStack,
        fallback: str = "",
        plan: PackedPlan | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        """Own what is given.

        Args:
            calls: Model name -> its sessions.
            resources: Closes the calls, then their sessions, then the files of these.
        """
        self.backend = backend
        self.fallback = fallback
        self.plan = plan
        self.compiled = compiled
        self._calls = dict(calls)
        self._only = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        self._release = weakref.finalize(self, resources.close)

    def summary(self) -> Mapping[str, object]:
        """Return the models, their backend, inputs and outputs."""
        chosen = {"plan": self.plan and self.plan.plan, "fallback": self.fallback}
        calls = {
            f"{name} {side}".lstrip(): ", ".join(map(str, getattr(call.signature, side)))
            for name, call in self._calls.items()
            for side in ("inputs", "outputs")
        }
        return {"backend": self.backend} | {k: v for k, v in chosen.items() if v} | calls

    @property
    def models(self) -> tuple[str, ...]:
        """Names for ``engine[name]``; one model alone is named ''."""
        return tuple(self._calls)

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the only model."""
        return self.require_single().signature

    def __getitem__(self, name: str) -> Call:
        """Return one of several models, to be called with its inputs."""
        try:
            return self._calls[name]
        except KeyError:
            choices = ", ".join(f"'{choice}'" for choice in self._calls)
            raise BadSettings(f"the engine has no model '{name}'", fix=f"use {choices}") from None

    def add_call(self, name: str, call: Call) -> None:
        """Add another way to call the engine, under a name of its own."""
        self._calls[name] = call

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run the only model once and return every output by name.

        Raises:
            BadData: The inputs do not fit the model.
            BadSettings: There are several models.
        """
        return (self._only or self.require_single()).run(inputs)

    def batch(self, samples: Sequence[Tensors]) -> list[dict[str, NDArray[Any]]]:
        """Run many samples of the only model; return every output by name of each, in order.

        Samples of equal shapes are computed together, where the model has a free batch dimension.

        Args:
            samples: Inputs by name, each with its own batch dimension.

        Raises:
            BadData: A sample does not fit the model.
            BadSettings: There are several models.
        """
        return (self._only or self.require_single()).batch(samples)

    async def submit(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Queue one request to the only model, to be joined with others that wait; await it.

        From any event loop, in any thread. The arrays must not change before the answer.

        Raises:
            BadData: The inputs do not fit the model.
            BadSettings: There are several models.
            QueueFull: More requests wait than may.
        """
        return await (self._only or self.require_single()).submit(**inputs)

    def evaluate(
        self,
        samples: Samples,
        labels: str | Path | Sequence[Any] | None = None,
        *,
        metric: str | Metric | None = None,
        reference: Engine | None = None,
    ) -> Evaluation:
        """Run every sample once through the only model and score the answers.

        Args:
            samples: As for ``optimize --data``, or dicts of arrays.
            labels: One a sample, where the samples bring none.
            metric: ``top1`` without it, with a reference ``agreement``.
            reference: What the answers are compared with, by metrics that need no labels.

        Raises:
            BadData: A sample does not fit the model, or cannot be scored.
            BadSettings: The metric is not known, or compares with a reference that is not given.
        """
        other = None if reference is None else reference[self.models[0]]
        return evaluate_samples(
            self.require_single(), samples, labels, metric=metric, reference=other
        )

    @property
    def statistics(self) -> Statistics:
        """Counts and times of what was submitted to the only model."""
        return self.require_single().statistics

    def warm_up(self, /, **inputs: NDArray[Any]) -> None:
        """Run every instance once: on these inputs, a golden sample, or the smallest zeros.

        Args:
            inputs: Of the only model; without them all models are warmed up.

        Raises:
            BadData: The inputs do not fit; or there are none, and a model does not take zeros.
            BadSettings: Inputs are given, and there are several models.
        """
        if inputs:
            self.require_single().warm_up(**inputs)
            return
        for call in self._calls.values():
            call.warm_up()

    def placement(self) -> Mapping[str, int]:
        """Return execution provider -> nodes over all models; empty if unknown."""
        total: dict[str, int] = {}
        for call in self._calls.values():
            for provider, nodes in call.placement().items():
                total[provider] = total.get(provider, 0) + nodes
        return total

    def terminate(self) -> None:
        """Cancel all submitted requests that have no answer yet."""
        for call in self._calls.values():
            call.terminate()

    def close(self) -> None:
        """Answer what runs or waits, close the sessions and remove the unpacked files.

        Calls that come later are told so. Safe to call twice.
        """
        for call in self._calls.values():
            call.drain()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def require_single(self) -> Call:
        """Return the only model. Raises BadSettings: there are several."""
        if self._only is None:
            names = ", ".join(self._calls)
            raise BadSettings(
                f"the engine holds {wording.format_count(len(self._calls), 'model')}: {names}",
                fix=f"call engine['{next(iter(self._calls))}'](...)",
            )
        return self._only


Samples: TypeAlias = "Source | Mapping[str, Any] | Iterable[Mapping[str, Any]]"
"""A folder, a file, ``FILE.py:NAME``, a function; or dicts of arrays, one a sample or batch."""
Floats: TypeAlias = NDArray[np.float64]
_ERROR = 0.025
"""Of each end of the interval."""


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """What a model scored.

    Attributes:
        low: The lower end of its 95 % interval. Of right and wrong answers it is exact (Clopper
            and Pearson), else a bootstrap over samples or groups: too narrow where what matters
            is rare, infinite where there is one sample.
        high: The upper end.
        unit: What counts as independent: ``sample``, or ``group`` where samples share one.
        records: The score of each sample by itself, in their order.
    """

    headline: ClassVar[tuple[str, ...]] = ("metric", "value", "low", "high", "samples")

    metric: str
    value: float
    low: float
    high: float
    samples: int
    unit: str = "sample"
    records: tuple[float, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = ()


def evaluate_samples(
    call: Call,
    samples: Samples,
    labels: str | Path | Sequence[Any] | None = None,
    *,
    metric: str | Metric | None = None,
    reference: Call | None = None,
) -> Evaluation:
    """Run every sample once and score the answers.

    Labels, one a sample, are for samples that bring none. The metric is ``top1`` where there are
    labels, and ``agreement`` with a reference, by which metrics need no labels. Raises BadData: a
    sample does not fit the model, or cannot be scored; BadSettings: the metric is not known, or
    compares with a reference that is not given.
    """
    default = "top1" if reference is None else "agreement"
    scorer = (
        spelling.parse_plugin(Metric, metric or default)
        if not isinstance(metric, Metric)
        else metric
    )
    if isinstance(scorer, Fidelity) and reference is None:
        raise BadSettings(
            f"{scorer.name()} compares with the answers of another model",
            fix="give reference=ot.load(...), or a metric of labels such as top1",
        )
    takes_pictures = call.pictures
    source: Source
    if isinstance(samples, (str, Path)) or callable(samples):
        source = samples
    else:
        blocks = [samples] if isinstance(samples, Mapping) else samples

        def source() -> Iterable[Mapping[str, Any]]:
            for sample in blocks:
                yield takes_pictures.replace_pictures(sample) if takes_pictures else sample

    rows = []
    with open_temporary_folder() as folder:
        fed = feeds.load_feeds(
            source,
            call.signature.inputs,
            Path(folder),
            labels=labels,
            pictures=takes_pictures.keys if takes_pictures else None,
        )
        for at, tensors in enumerate(Stream(fed.stream)):
            feed: Tensors = {name: np.array(array) for name, array in tensors.items()}
            actual = call(**feed)
            expected = actual if reference is None else reference(**feed)
            label = None if fed.labels is None else [fed.labels[at]]
            rows.append(scorer.records([expected], [actual], label, [feed]))
    records = stack_records(rows)  # [samples, k]
    units = number_groups(fed.groups, len(records))
    value = estimate_score(scorer, records, units)
    low, high = _estimate_interval(scorer, records, units, value)
    return Evaluation(
        metric=str(scorer),
        value=value,
        low=low,
        high=high,
        samples=len(records),
        unit="group" if len(np.unique(units)) < len(records) else "sample",
        records=tuple(scorer.each(records).tolist()),
        notes=fed.notes,
    )


def _estimate_interval(
    metric: Metric, records: Floats, units: NDArray[np.int64], value: float
) -> tuple[float, float]:
    """Return the ends of the 95 % interval."""
    if np.isnan(value):
        return value, value
    count, alone = len(records), len(np.unique(units)) == len(records)
    if alone and metric.kind(records) is Kind.RIGHT:
        right = round(float(records[:, 0].sum()))
        low = binomial.compute_clopper_pearson(right, count, _ERROR) if right else 0.0
        high = (
            1 - binomial.compute_clopper_pearson(count - right, count, _ERROR)
            if right < count
            else 1.0
        )
        return low, high
    order = np.argsort(units, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(units[order])) + 1)
    if metric.kept_by:  # a group is as good as its worst sample
        sign = 1 if metric.higher_is_better else -1
        margin = sign * metric.each(records)
        members = [group[[int(np.argmin(margin[group]))]] for group in members]

    def score_draw(rows: NDArray[np.int64]) -> float:
        return estimate_score(metric, records[rows], np.arange(len(rows)))

    return bootstrap.compute_interval(score_draw, members, _ERROR)
