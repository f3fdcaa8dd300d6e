"""Between what a number may lie: of a plugin's field, of an option, of text that holds one."""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import effective_cpus

HIGHEST = 2.0**31 - 1
"""What runtimes take as a count; as seconds it is 68 years."""


@dataclass(frozen=True)
class Bounds:
    """What a number is checked against; NaN and infinity never pass.

    A field says ``Annotated[float, Bounds(high=1)]``; one that says nothing has these defaults.
    """

    low: float = 0.0  # smallest allowed
    high: float = HIGHEST  # largest allowed
    # Largest allowed for each CPU at hand, of threads and processes. It is asked where a person
    # spells the number, not where one is read that another machine wrote.
    per_cpu: int | None = None

    def check(self, value: object, *, here: bool = False) -> None:
        """Check a number, or every number of a list or a mapping.

        Args:
            value: What has no numbers passes.
            here: The CPUs of this machine count.

        Raises:
            BadSettings: One is not finite, or out of bounds.
        """
        for number in dict.fromkeys(find_numbers(value)):  # a list may say one a million times
            if not _is_finite(number):
                raise BadSettings(
                    f"{_format_number(number)} is not a finite number", fix="give a number"
                )
            if number < self.low:
                raise BadSettings(
                    f"{_format_number(number)} is too small",
                    fix=f"give {_format_number(self.low)} or more",
                )
            why, most, cpus = "", self.high, 0
            if here and self.per_cpu is not None and number <= most:
                cpus = effective_cpus()
                most = (self.per_cpu or 1) * cpus
                why = f": this process may use {cpus} CPU{'' if cpus == 1 else 's'}"
            if number > most:
                raise BadSettings(
                    f"{_format_number(number)} is too large{why}",
                    fix=f"give {_format_number(most)} or less",
                )


ANY = Bounds(-math.inf, math.inf)
"""Any finite number, of either sign."""
SHARE = Bounds(high=1.0)
"""From 0 to 1."""
THREADS = Bounds(high=1_000_000, per_cpu=2)
"""Of threads, sessions, streams or processes that work at once."""


def find_numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a value: itself, or those in a list or a mapping; truths are none."""
    if isinstance(value, (int, float)):
        if not isinstance(value, bool):
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_numbers(item)


@cache
def read_field_bounds(kind: type[Any], default: Bounds | None) -> Mapping[str, Bounds]:
    """Return field -> bounds of a dataclass, of fields that hold numbers.

    Args:
        default: Of a field that declares none; None leaves those out.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    numeric = {name: hint for name, hint in hints.items() if _allows_number(hint)}
    candidates = {name: find_declared_bounds(hint) or default for name, hint in numeric.items()}
    return {name: limits for name, limits in candidates.items() if limits is not None}


def find_declared_bounds(hint: Any) -> Bounds | None:
    """Return the bounds in an annotation, the outermost first; None where there are none."""
    if get_origin(hint) is Annotated:
        direct = next((item for item in hint.__metadata__ if isinstance(item, Bounds)), None)
        return direct or find_declared_bounds(hint.__origin__)
    return next(
        (item for item in map(find_declared_bounds, get_args(hint)) if item is not None), None
    )


def _allows_number(hint: Any) -> bool:
    """Say whether a field's annotation allows a number, itself or in a list."""
    origin = get_origin(hint)
    if origin is typing.ClassVar:
        return False
    if origin in (Annotated, typing.Union, types.UnionType, tuple, list) or (
        isinstance(origin, type) and issubclass(origin, (Mapping, typing.Sequence))
    ):
        return any(map(_allows_number, get_args(hint)))
    return hint is int or hint is float


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _format_number(number: float) -> str:
    """Write a number in at most a dozen digits."""
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e12:
        return str(int(number))
    if isinstance(number, int):
        return str(number) if abs(number) < 10**12 else f"a {number.bit_length()}-bit number"
    return f"{number:g}"
