"""Score a loaded model on samples: one figure by a metric, with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

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

if TYPE_CHECKING:
    from ortune.bundle.engine.call import Call

Samples: TypeAlias = "Source | Mapping[str, Any] | Iterable[Mapping[str, Any]]"
"""A folder, a file, ``FILE.py:NAME``, a function; or dicts of arrays, one a sample or batch."""
Floats: TypeAlias = NDArray[np.float64]
_ERROR = 0.025
"""Of each end of the interval."""


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """What a model scored.

    Attributes:
        metric: Its spelling.
        value: The score over all samples.
        low: The lower end of its 95 % interval. Of right and wrong answers it is exact (Clopper
            and Pearson), else a bootstrap over samples or groups: too narrow where what matters
            is rare, infinite where there is one sample.
        high: The upper end.
        samples: How many were scored.
        unit: What counts as independent: ``sample``, or ``group`` where samples share one.
        records: The score of each sample by itself, in their order.
        notes: What was done to the samples.
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

    Args:
        samples: As for ``optimize --data``, or dicts of arrays.
        labels: One a sample, where the samples bring none.
        metric: ``top1`` where there are labels, without it, and ``agreement`` with a reference.
        reference: What the answers are compared with, by metrics that need no labels.

    Raises:
        BadData: A sample does not fit the model, or cannot be scored.
        BadSettings: The metric is not known, or compares with a reference that is not given.
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
