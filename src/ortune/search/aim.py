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
        afterwards: Seconds of the user's time that are kept for what follows the search.
    """

    seconds: float
    began: float
    target_speedup: float | None = None
    strict: bool = False
    clock: Callable[[], float] = time.monotonic
    afterwards: float = 0.0

    def left(self) -> float:
        """Return the seconds left of the time budget."""
        return self.seconds - (self.clock() - self.began)

    def all_left(self) -> float:
        """Return the same with what follows the search."""
        return self.left() + self.afterwards
