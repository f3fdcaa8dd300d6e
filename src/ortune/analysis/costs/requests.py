"""What `cost` is asked, also with --timeline, and prices, load and overhead read from text."""

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.core.custom_ops import BackendRequest
from ortune.core.errors import BadSettings
from ortune.core.fields import Duration, Model, Option
from ortune.core.request import DataRequest, Request, request

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
_WHOLE = 100
"""Amounts from which on no decimals are written."""


@dataclass(frozen=True)
class Terms:
    """Prices, overhead and load. Money is in the price's own unit."""

    price_per_hour: float  # of one machine, or of one device where several are counted
    currency: str = ""  # as written beside the price; may be empty
    overhead_s: float = 0.0  # of one run, outside the model: decoding, resizing, transport
    processes: int = 1
    # Numbers of machines (or devices) to show; the first is what is paid today where no load is
    # given.
    devices: tuple[int, ...] = (1,)
    # Samples a second that must be served; None compares at equal work.
    load_per_s: float | None = None
    effort_cost: float = 0.0  # of the work that the change takes, once
    hours_per_day: float = 24.0  # hours that the machines are paid for
    within_months: float = 6.0  # latest return of the money for the verdict "do it"

    def __post_init__(self) -> None:
        if not 0 < self.hours_per_day <= 24:
            problem = f"--hours-per-day {self.hours_per_day:g} is not possible"
            raise BadSettings(problem, fix="give 1 to 24")
        if not 0 < self.within_months < math.inf:
            problem = f"--within {self.within_months:g} is not a duration"
            raise BadSettings(problem, fix="give months, such as 6")

    @property
    def month_hours(self) -> float:
        """Paid hours of a month: 30.4 days."""
        return MONTH_DAYS * self.hours_per_day

    def format_money(self, amount: float) -> str:
        """Write an amount with its currency."""
        return f"{format_money_amount(amount)} {self.currency}".rstrip()


def format_money_amount(amount: float) -> str:
    """Write an amount: whole from a hundred on, two decimals, or three digits below 1."""
    if abs(amount) >= _WHOLE:
        return f"{amount:,.0f}"
    return f"{amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"{amount:.3g}"


def read_price(text: str) -> tuple[float, str]:
    """Read ``2.50/h``, ``2.50 EUR/h`` or ``$2.50/h`` into an amount an hour and its currency."""
    fix = 'write 2.50/h or "2.50 EUR/h", above zero'
    before, amount, behind = _parse_text(_PRICE, text, "price", fix)
    if float(amount) <= 0 or (before and behind):
        raise BadSettings(f"cannot read the price '{text}'", fix=fix)
    return float(amount), before or behind


def read_load(text: str) -> float:
    """Read ``150/s``, ``9000/min``, ``40000/h`` or ``1000000/day`` into samples a second."""
    fix = "write 150/s, 9000/min, 40000/h or 1000000/day"
    amount, unit = _parse_text(_LOAD, text, "load", fix)
    if float(amount) <= 0:
        raise BadSettings(f"cannot read the load '{text}'", fix=fix)
    return float(amount) / _SECONDS[unit]


def read_overhead(text: str) -> float:
    """Read ``20ms``, ``800us`` or ``1.5s`` into seconds."""
    amount, unit = _parse_text(_SPAN, text, "overhead", "write 20ms, 800us or 1.5s")
    return float(amount) * _SECONDS[unit]


def read_effort(text: str) -> float:
    """Read ``4h@80/h``, hours at a rate an hour, into what it costs."""
    hours, rate = _parse_text(_EFFORT, text, "effort", "write 4h@80/h: hours at a rate")
    return float(hours) * float(rate)


def read_devices(text: str) -> tuple[int, ...]:
    """Read ``4`` or ``1-8`` into numbers of devices."""
    fix = f"write 4 or 1-8, {_MOST} at most"
    low, high = _parse_text(_RANGE, text, "number of GPUs", fix)
    first, last = int(low), int(high or low)
    if first < 1 or last < first or last - first >= _MOST:
        raise BadSettings(f"cannot read the number of GPUs '{text}'", fix=fix)
    return tuple(range(first, last + 1))


def _parse_text(pattern: re.Pattern[str], text: str, quantity: str, fix: str) -> tuple[str, ...]:
    match = pattern.fullmatch((text or "").strip())
    if match is None:
        raise BadSettings(f"cannot read the {quantity} '{text}'", fix=fix)
    return match.groups("")


@request
class Cost(Request):
    """Price what RUN measured: an `optimize -o` folder, a file of `bench` or `loadtest`.

    The first row is what is paid today. Money is in the price's own unit.

    Example:
        ortune cost RUN --price 2.50/h --overhead 20ms --processes 6 --effort 4h@80/h
        ortune cost bench.json --price "2.50 EUR/h" --load 150/s

    Attributes:
        sources: The first holds what is paid today in its first row; rows of the others follow.
        price: Price of a machine, or of a GPU, such as 2.50/h.
        load: Samples that must be served: 150/s.
        overhead: Time of a run outside the model, such as 20ms. What `bench --end-to-end` timed
            includes it.
        processes: Processes that work on one machine.
        gpus: Numbers of GPUs to show: 1-8.
        effort: Work the change takes: 4h@80/h.
        hours_per_day: Hours that machines are paid for; a month has 30.4 days.
        currency: Written behind amounts; what the price is written in if not given, such as EUR.
        within_months: Months within which the cost must pay back for the verdict "do it".

    Raises:
        OrtuneError: A word or a source cannot be read.
    """

    sources: Annotated[str | Path | Sequence[str | Path], Option("RUN...")]
    price: Annotated[str, Option("P/h", "--price")]
    _: KW_ONLY
    load: Annotated[str, Option("N/s")] = ""
    overhead: Annotated[str, Option("TIME")] = ""
    processes: Annotated[int, Option(low=1, high=4096)] = 1
    gpus: Annotated[str, Option("N|N-M")] = ""
    effort: Annotated[str, Option("H@P")] = ""
    hours_per_day: Annotated[float, Option(high=24)] = 24.0
    within_months: Annotated[float, Option("MONTHS", "--within", high=1200)] = 6.0
    currency: Annotated[str, Option(hidden=True)] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        read_price(self.price)  # before a source is read
        for text, reader in (
            (self.load, read_load),
            (self.overhead, read_overhead),
            (self.effort, read_effort),
            (self.gpus, read_devices),
        ):
            if text:
                reader(text)


@request
class TimelineRequest(BackendRequest, DataRequest):
    """Time MODEL as exported, optimized, quantized and both: preparation, sessions, inferences.

    Files that onnxruntime optimized offline, as ONNX and as .ort, are compared with optimizing at
    load. Without --data the inputs are made up: the times hold, a quantized model's answers are
    not judged.

    Example:
        ortune cost model.onnx --timeline --data samples/ -o timeline.html

    Attributes:
        model: The model file.
        step: The quantizer, such as int8-dynamic; the first that a search would try if not given.
        on: Where to run: cpu with any setting but level, which is varied.
        inferences_per_session: Inferences that one session serves before the next starts.
        starts: Fresh processes each.
        time: Time spent on timing inferences; every line takes some seconds at least.

    Raises:
        OrtuneError: The model, the data or an option cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time"}

    model: Model
    _: KW_ONLY
    step: Annotated[str, Option("SPEC")] = ""
    inferences_per_session: Annotated[float, Option("N", low=1)] = 1000
    starts: Annotated[int, Option(low=1, high=1000, hidden=True)] = 9
    time: Duration = Duration("20s", Option("DURATION", low=0.1))
