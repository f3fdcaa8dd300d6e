"""The original's records on a part of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.metric import Metric
from ortune.data.stream import Stream
from ortune.experiment.context import ScoredPart


def scored_part(
    name: str,
    indices: Sequence[int],
    outputs: Stream,
    metric: Metric,
    labels: Sequence[Any] | None = None,
    groups: Sequence[str] | None = None,
) -> ScoredPart:
    """Put a part of the data together with the original's records on it.

    Args:
        indices: Into the samples.
        outputs: The original's on these samples.
        metric: The budget's.
        labels: Of all samples.
        groups: Of all samples.
    """
    some = None if labels is None else tuple(labels[i] for i in indices)
    rows = [
        metric.records([out], [out], None if some is None else [some[i]])[0]
        for i, out in enumerate(outputs)
    ]
    records: NDArray[np.float64] = np.asarray(rows, np.float64)
    grouped = None if groups is None else tuple(groups[i] for i in indices)
    return ScoredPart(name, tuple(indices), outputs.path, records, some, grouped)
