"""A limit that a percentile of the latency must keep, such as ``p99<=20ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ortune.core.errors import BadSettings
from ortune.load_testing.sweep import Repeated

_FORM = re.compile(r"p(\d{2}(?:\.\d{1,2})?)\s*<=?\s*(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s)")
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True)
class LatencyLimit:
    """A percentile of the latency from the intended start, and what it is at most.

    Attributes:
        percentile: From 50 up, below 100.
        limit_ns: Nanoseconds.
    """

    percentile: float
    limit_ns: float

    def holds(self, found: Repeated) -> bool | None:
        """Whether a level keeps it; None where too few answers tell.

        A level with an error, or that answers more slowly than requests come, does not.
        """
        if not found.keeps_up or not found.answered:
            return False
        seen = found.percentile(self.percentile)
        return None if seen is None else seen <= self.limit_ns

    def __str__(self) -> str:
        unit = next(unit for unit in ("s", "ms", "us") if self.limit_ns >= _NS[unit])
        return f"p{self.percentile:g}<={self.limit_ns / _NS[unit]:g}{unit}"


def read(text: str) -> LatencyLimit:
    """Read a limit.

    Raises:
        BadSettings: It is none.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or not 50 <= float(found[1]) < 100 or not float(found[2]):
        raise BadSettings(f"cannot read the limit '{text}'", fix='write "p99<=20ms": us, ms or s')
    return LatencyLimit(float(found[1]), float(found[2]) * _NS[found[3]])
