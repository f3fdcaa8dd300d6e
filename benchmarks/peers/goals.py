"""What a file of the race must keep, for tools that look at it themselves, and their time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ortune.core.budget import Budget

SECONDS = 180.0
"""Of a search by ortune, and of a call of a peer."""
FACTOR = 1.5
"""A call that took so many times its seconds is stopped: what it then has is its result."""
_BEST = {"snr": ("snr", 200.0), "benchmarks.sentences:cosine": ("sentence cosine", 1.0)}
"""Metric of a budget -> its name in the peers' scripts, and what the original scores."""


@dataclass(frozen=True)
class Goal:
    """How much a file may lose, on which samples, and how long making it may take.

    Attributes:
        data: The evaluation samples, one row a file, labels among them: those that ortune's
            search gets, too.
        metric: ``top1``, ``sentence cosine`` (that 95 % of the sentences keep) or ``snr`` (over
            all samples, in dB): see ``tools/judging.py``.
        drop: How far below the original's score it may be.
        seconds: For tools that can be told a time.
    """

    data: Path
    metric: str
    drop: float
    seconds: float = SECONDS

    @property
    def limit_s(self) -> float:
        """When a call is stopped."""
        return FACTOR * self.seconds

    def told(self) -> str:
        """Return it as the scripts read it."""
        about = {"metric": self.metric, "drop": self.drop, "seconds": self.seconds}
        return json.dumps({"data": str(self.data), **about})


def goal(budget: str, data: Path, seconds: float = SECONDS) -> Goal:
    """Return the goal that is a budget's.

    Raises:
        ValueError: The scripts have no such metric.
    """
    found = Budget.parse(budget)
    name = getattr(found.metric, "path", "") or found.metric.name()
    if name == "top1" and found.relative:
        return Goal(data, name, -found.limit, seconds)
    if name not in _BEST or found.relative:
        raise ValueError(f"the peers' scripts cannot judge by {budget}")
    name, best = _BEST[name]
    return Goal(data, name, best - found.limit, seconds)
