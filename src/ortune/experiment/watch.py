"""Outputs that the budget does not read: what each should keep, and which does not.

They never decide. A limit is what `ortune.data.derive` finds for the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ortune.core.budget import Budget
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.metric import Metric
from ortune.core.plugins import codec
from ortune.core.session import Tensors
from ortune.data import derive

_ASKED = 8
"""Samples on which a metric is asked what it reads."""


def limits(
    metric: Metric,
    outputs: Sequence[Tensors],
    labels: Sequence[Any] | None,
    ignored: Sequence[str],
) -> tuple[Budget, ...]:
    """Return a limit for every output that a metric does not read and nobody ignores.

    One whose values in the original are no numbers has none.

    Args:
        metric: The budget's.
        outputs: The original's, on some samples.
        labels: Of these samples.

    Raises:
        BadSettings: An ignored output does not exist.
    """
    names = list(outputs[0])
    for name in ignored:
        if name not in names:
            raise BadSettings(
                f"--ignore-output {name}: the model has no such output",
                fix=f"use one of: {', '.join(names)}",
            )
    read = set(ignored)
    for at in range(min(_ASKED, len(outputs))):
        read |= metric.reads(outputs[at], None if labels is None else labels[at])
    found = []
    for name in names:
        if name not in read:
            with suppress(OrtuneError):
                budget, _ = derive.derive({name: [tensors[name] for tensors in outputs]})
                own = codec.build(type(budget.metric), vars(budget.metric) | {"output": name})
                found.append(replace(budget, metric=own))
    return tuple(found)
