"""Observers: how a tensor's range is read off calibration data, one batch at a time."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from ortune.core.plugins.plugin import Plugin


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of what one layer multiplies with its weight.

    A vector is one row of a matrix product, or one window of a convolution in the order of its
    weight's columns (input channel, then kernel positions); groups of a convolution are apart.
    """

    count: int  # vectors seen
    mean: NDArray[Any]  # float64, shape [groups, width]
    second: NDArray[Any]  # mean of x x^T, not centred, float64, shape [groups, width, width]


@dataclass(frozen=True)
class Range:
    """What an observer reports of a tensor: above all the values that a grid must cover."""

    low: float  # in the tensor's units
    high: float  # in the tensor's units
    # Lowest and highest value at each index of the last axis, from observers that keep them apart;
    # empty from all others.
    channels: tuple[tuple[float, float], ...] = ()
    # From observers that gather them; None from all others.
    moments: Moments | None = field(default=None, compare=False, repr=False)


Ranges: TypeAlias = Mapping[str, Range]
"""Key of a probe, which is the tensor's name unless it says otherwise -> range."""


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
    covers: ClassVar[bool] = True
    """Whether the range holds the tensor's values, so that an integer grid can be made of it."""

    @abstractmethod
    def start(self) -> Accumulator:
        """Return a fresh accumulator for one tensor."""

    def fit_centred_grid(self, *, by_sign: bool) -> Self:
        """Return the observer for grids around zero; itself where its range hangs on no grid.

        Args:
            by_sign: A grid begins at zero where nothing is negative.
        """
        return self

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        """Return about how many bytes the accumulator of a tensor of this shape holds."""
        return 1 << 15


@dataclass(frozen=True)
class Probe:
    """A request to watch one tensor while the calibration data runs."""

    tensor: str  # its name, of the main graph or of a body of If, Loop or Scan
    observer: Observer  # how
    # Under which the answer is given: for a step that watches one tensor in several ways.
    name: str = ""

    @property
    def key(self) -> str:
        """The name of the answer."""
        return self.name or self.tensor
