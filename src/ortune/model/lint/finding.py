"""One thing that is wrong with a model, or may surprise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: Its name.
        severity: ``error``: answers are wrong or a runtime refuses the file; ``warning``: it costs
            time, memory or accuracy; ``note``: good to know.
        what: One line.
        count: Places where it is so.
        places: The first three: names of nodes or tensors.
        cost: What it does.
        action: How to fix it, in the words of the command line where a step does.
    """

    rule: str
    severity: Severity
    what: str
    count: int
    places: tuple[str, ...]
    cost: str
    action: str


def finding(
    rule: str, severity: Severity, what: str, places: Iterable[object], cost: str, action: str
) -> Finding | None:
    """Return a finding, or None without places.

    ``{n} things`` in `what` becomes ``3 things``, or ``1 thing``.
    """
    every = list(dict.fromkeys(str(place) for place in places))
    if not every:
        return None
    text = re.sub(r"\{n\} (\w+)s\b", r"1 \1", what) if len(every) == 1 else what
    text = text.replace("{n}", str(len(every)))
    return Finding(rule, severity, text, len(every), tuple(every[:_SHOWN]), cost, action)
