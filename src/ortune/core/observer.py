"""Observers: how a tensor's range is read off calibration data, one batch at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from numpy.typing import NDArray

from ortune.core.plugin import Plugin


@dataclass(frozen=True)
class Range:
    """The values that a tensor's integer grid shall cover, in the tensor's units.

    Attributes:
        channels: Lowest and highest value at each index of the last axis, from observers that
            keep them apart; empty from all others.
    """

    low: float
    high: float
    channels: tuple[tuple[float, float], ...] = ()


Ranges: TypeAlias = Mapping[str, Range]
"""Tensor name -> range."""


class Accumulator(Protocol):
    """The state of one tensor's observation; its size does not depend on the sample count."""

    def update(self, turn: int, values: NDArray[Any]) -> None:
        """Take the tensor's values of one run in pass `turn`, counted from 0."""
        ...

    def result(self) -> Range:
        """Return the range after the last pass."""
        ...


@dataclass(frozen=True)
class Observer(Plugin):
    """A streaming calibration method.

    Attributes:
        passes: How often the calibration data is run through the model.
    """

    folder: ClassVar[str] = "observers"
    passes: ClassVar[int] = 1

    @abstractmethod
    def start(self) -> Accumulator:
        """Return a fresh accumulator for one tensor."""


@dataclass(frozen=True)
class Probe:
    """A request to watch one tensor of the main graph while the calibration data runs."""

    tensor: str
    observer: Observer
