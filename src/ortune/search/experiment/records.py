"""Records: as they come from a worker, and the original's on a part of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.metric import Metric, stack_records
from ortune.core.session import Tensors
from ortune.data.stream import Stream
from ortune.search.experiment.context import ScoredPart


def to_record_array(
    rows: Sequence[Sequence[float]], count: int | None = None
) -> NDArray[np.float64]:
    """Return per-sample records as an array [samples, k].

    Args:
        count: How many there must be; None takes any number.

    Raises:
        BadData: Rows differ in length, or there are more or fewer than `count`.
    """
    if count is not None and len(rows) != count:
        raise BadData(
            f"{wording.format_count(len(rows), 'record')} came back, {count} from the original",
            fix="return one record a sample, whatever the outputs are",
        )
    if len({len(row) for row in rows}) > 1:
        raise BadData("records differ in length", fix="return the same numbers for every sample")
    return np.asarray(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else 1)


def make_scored_part(
    name: str,
    indices: Sequence[int],
    outputs: Stream,
    metric: Metric,
    *,
    labels: Sequence[Any] | None = None,
    groups: Sequence[str] | None = None,
    inputs: Callable[[int], Tensors] | None = None,
) -> ScoredPart:
    """Put a part of the data together with the original's records on it.

    Args:
        outputs: The original's on these samples.
        inputs: Of a sample by its index, for a metric that reads them.
    """
    part_labels = None if labels is None else tuple(labels[i] for i in indices)
    fed = inputs if metric.reads_inputs else None
    rows = [
        metric.records(
            [out],
            [out],
            None if part_labels is None else [part_labels[i]],
            None if fed is None else [fed(indices[i])],
        )
        for i, out in enumerate(outputs)
    ]
    records = stack_records(rows)
    grouped = None if groups is None else tuple(groups[i] for i in indices)
    return ScoredPart(name, tuple(indices), outputs.path, records, part_labels, grouped)
