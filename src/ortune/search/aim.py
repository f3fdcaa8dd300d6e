"""When a search may stop, and what it accepts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Aim:
    """When the search may stop, and what it accepts.

    Attributes:
        seconds: Anytime budget.
        began: When the budget began to run, by `clock`.
        target_speedup: Stop at the first proved plan whose interval lies above it.
        strict: Accept only proved accuracy.
        clock: Tells the seconds; a test brings its own.
    """

    seconds: float
    began: float
    target_speedup: float | None = None
    strict: bool = False
    clock: Callable[[], float] = time.monotonic

    def left(self) -> float:
        """Return the seconds left of the time budget."""
        return self.seconds - (self.clock() - self.began)
