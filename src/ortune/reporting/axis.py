"""Scales of plots: from values to pixels, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A scale; values beyond its ends are drawn at the ends.

    Attributes:
        low: Value at `start`.
        high: Value at `stop`, above `low`.
        start: Place in px.
        stop: Place in px.
        log: Logarithmic; then `low` is above zero.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value in px."""
        inside = self._along(min(max(value, self.low), self.high))
        low, high = self._along(self.low), self._along(self.high)
        return self.start + (inside - low) / (high - low) * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        """Whether a value is drawn at its own place."""
        return self.low <= value <= self.high

    def ticks(self, about: int = 6) -> list[float]:
        """Return round values: 1, 2 or 5 times a power of ten apart, or powers on a log axis."""
        wide = self.log and self.high > 5 * self.low
        return self._powers(about) if wide else self._steps(about)

    def tick(self, value: float) -> str:
        """Write a tick's value."""
        if self.log:
            return short(value)
        digits = max(0, 2 - math.floor(math.log10(self.high - self.low)))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text

    def _along(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def _steps(self, about: int) -> list[float]:
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _powers(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = math.log10(self.high / self.low)
        units = (1, 2, 5) if decades * 3 <= about + 2 else (1,)
        apart = max(1, math.ceil(decades / (about + 2)))
        every = [unit * 10.0**n for n in range(first, last + 1, apart) for unit in units]
        return [value for value in every if self.holds(value)]


def spanning(values: Sequence[float], start: float, stop: float, *, log: bool = False) -> Axis:
    """Return an axis that holds all values, with some room at the ends.

    Values that are not finite, or not above zero on a logarithmic axis, do not count.
    """
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = min(kept, default=1.0), max(kept, default=1.0)
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return Axis(low / room, high * room, start, stop, log=True)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - pad, high + pad, start, stop)


def short(value: float) -> str:
    """Write a value with a letter for thousands: ``0.05``, ``20``, ``5k``, ``2M``, ``1G``."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10.0**power:
            return f"{value / 10.0**power:.4g}{letter}"
    return f"{value:.4g}"
