"""Prices, load and overhead of inference, read from text such as ``2.50/h``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ortune.core.errors import BadSettings

MONTH_DAYS = 30.4
"""Days of a month: 365 / 12, to one place."""

_NUMBER = r"(\d{1,15}(?:\.\d{1,15})?)"
_PRICE = re.compile(rf"([^\d\s.,/+-]*)\s*{_NUMBER}\s*([^\d\s.,/+-]*)\s*/\s*h(?:our)?")
_LOAD = re.compile(rf"{_NUMBER}\s*/\s*(s|min|h|day)")
_SPAN = re.compile(rf"{_NUMBER}\s*(us|ms|s)")
_EFFORT = re.compile(
    rf"{_NUMBER}\s*h\s*@\s*[^\d\s.,/+-]*\s*{_NUMBER}\s*[^\d\s.,/+-]*\s*/\s*h(?:our)?"
)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_MOST = 64


@dataclass(frozen=True)
class Terms:
    """Prices, overhead and load. Money is in the price's own unit.

    Attributes:
        price_per_hour: Of one machine, or of one device where several are counted.
        currency: As written beside the price; may be empty.
        overhead_s: Of one run, outside the model: decoding, resizing, transport.
        processes: At work on one machine at once.
        devices: Numbers of machines (or devices) to show; the first is what is paid today where
            no load is given.
        load_per_s: Samples a second that must be served; None compares at equal work.
        effort_cost: Of the work that the change takes, once.
        hours_per_day: Hours that the machines are paid for.
        within_months: Latest return of the money for the verdict "do it".
    """

    price_per_hour: float
    currency: str = ""
    overhead_s: float = 0.0
    processes: int = 1
    devices: tuple[int, ...] = (1,)
    load_per_s: float | None = None
    effort_cost: float = 0.0
    hours_per_day: float = 24.0
    within_months: float = 6.0

    def __post_init__(self) -> None:
        if not 0 < self.hours_per_day <= 24:
            problem = f"a day has no {self.hours_per_day:g} hours"
            raise BadSettings(problem, fix="give 1 to 24")
        if not 0 < self.within_months < math.inf:
            problem = f"--within {self.within_months:g} is no time"
            raise BadSettings(problem, fix="give months, such as 6")

    @property
    def month_hours(self) -> float:
        """Paid hours of a month: 30.4 days."""
        return MONTH_DAYS * self.hours_per_day

    def money(self, amount: float) -> str:
        """Write an amount: two decimals, or three digits where it is small."""
        shown = f"{amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"{amount:.3g}"
        return f"{shown} {self.currency}".rstrip()


def read_price(text: str) -> tuple[float, str]:
    """Read ``2.50/h``, ``2.50 EUR/h`` or ``$2.50/h`` into an amount an hour and its currency."""
    fix = 'write 2.50/h or "2.50 EUR/h", above zero'
    before, amount, behind = _read(_PRICE, text, "price", fix)
    if float(amount) <= 0 or (before and behind):
        raise BadSettings(f"cannot read the price '{text}'", fix=fix)
    return float(amount), before or behind


def read_load(text: str) -> float:
    """Read ``150/s``, ``9000/min``, ``40000/h`` or ``1000000/day`` into samples a second."""
    fix = "write 150/s, 9000/min, 40000/h or 1000000/day"
    amount, unit = _read(_LOAD, text, "load", fix)
    if float(amount) <= 0:
        raise BadSettings(f"cannot read the load '{text}'", fix=fix)
    return float(amount) / _SECONDS[unit]


def read_overhead(text: str) -> float:
    """Read ``20ms``, ``800us`` or ``1.5s`` into seconds."""
    amount, unit = _read(_SPAN, text, "overhead", "write 20ms, 800us or 1.5s")
    return float(amount) * _SECONDS[unit]


def read_effort(text: str) -> float:
    """Read ``4h@80/h``, hours at a rate an hour, into what it costs."""
    hours, rate = _read(_EFFORT, text, "effort", "write 4h@80/h: hours at a rate")
    return float(hours) * float(rate)


def read_devices(text: str) -> tuple[int, ...]:
    """Read ``4`` or ``1-8`` into numbers of devices."""
    fix = f"write 4 or 1-8, {_MOST} at most"
    low, high = _read(_RANGE, text, "number of GPUs", fix)
    first, last = int(low), int(high or low)
    if first < 1 or last < first or last - first >= _MOST:
        raise BadSettings(f"cannot read the number of GPUs '{text}'", fix=fix)
    return tuple(range(first, last + 1))


def _read(pattern: re.Pattern[str], text: str, what: str, fix: str) -> tuple[str, ...]:
    found = pattern.fullmatch((text or "").strip())
    if found is None:
        raise BadSettings(f"cannot read the {what} '{text}'", fix=fix)
    return found.groups("")
