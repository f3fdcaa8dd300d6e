"""How the model will be used: part of every key, because the winner depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Workload:
    """What one timed run is.

    Attributes:
        batch: Samples stacked into one run; 0 takes them as the data has them.
        goal: What is minimised. Only latency is searched today.
    """

    batch: int = 0
    goal: Literal["latency"] = "latency"
