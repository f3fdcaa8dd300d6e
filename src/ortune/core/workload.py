"""How the model will be used: part of every key, because the winner depends on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from ortune.core.errors import BadSettings
from ortune.core.plugins.plugin import Plugin

if TYPE_CHECKING:
    from ortune.core.session import Session, Tensors

_CYCLE = 32


class Lane(Protocol):
    """One session of every model, driven by one thread at a time."""

    def calls(self, position: int) -> Sequence[tuple[Session, Tensors]]:
        """Return the calls at a position of the endless cycle of samples: timed as one run."""
        ...

    def clock(self) -> int:
        """Monotonic nanoseconds of this lane's session."""
        ...

    def until(self, moment: int) -> None:
        """Wait until the lane's clock shows a moment."""
        ...

    def waited(self) -> int:
        """Nanoseconds that all threads of the process stood in the run queue; -1 if unknown."""
        ...


class Rig(Protocol):
    """What a worker gives a workload to drive."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The open lanes, as many as the workload asked for."""
        ...

    @property
    def shapes(self) -> Sequence[str]:
        """The shape of every run of the cycle, such as ``1x16``."""
        ...

    @property
    def out(self) -> Path:
        """A folder for what the drive writes."""
        ...

    def fresh(self) -> AbstractContextManager[Lane]:
        """Open a lane whose sessions have not run yet."""
        ...


@dataclass(frozen=True)
class Span:
    """What a burst is to run."""

    at: int  # first position of the cycle
    runs: int  # entries
    each: int = 1  # consecutive runs behind one entry
    drop: int = 0  # runs at `at` before them, at most, that do not count: fewer once they settle

    @property
    def total(self) -> int:
        """Runs that count."""
        return self.runs * self.each


@dataclass(frozen=True)
class Driven:
    """What a burst brought."""

    # One entry a run or group of runs, nanoseconds; of a span always as many, whatever the
    # backend.
    latency_ns: Sequence[int]
    # For each entry the share of the time that threads stood in the run queue; negative when it
    # cannot be read.
    waited: Sequence[float]
    runs: int  # runs of the whole burst, those that do not count included
    # What `Workload.results` makes its numbers of; plain JSON.
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload(Plugin):
    """Drives loaded sessions and says what an entry of a measurement is.

    Attributes:
        batch: Samples stacked into one run; 0 takes them as the data has them.
    """

    folder: ClassVar[str] = "workloads"
    measure: ClassVar[str] = "latency"
    """What an entry is, in the words of a report."""
    whole: ClassVar[bool] = False
    """A burst is one measurement: all its entries are equal."""
    scheduled: ClassVar[bool] = False
    """A burst follows a plan of its own: entry i is the same event on both sides of a pair."""

    batch: int = 0

    def __post_init__(self) -> None:
        """Check the batch; kinds check their own fields and then this.

        Raises:
            BadSettings: It is below 0.
        """
        self.demand(self.batch >= 0, "batch", "0 or more")

    def demand(self, holds: bool, field: str, expected: str) -> None:
        """Refuse a field's value unless it holds.

        Raises:
            BadSettings: It does not.
        """
        if not holds:
            value = getattr(self, field)
            raise BadSettings(
                f"{self.name()}({field}={value}) is not allowed", fix=f"give {expected}"
            )

    def within(self, seconds: float) -> Self:
        """Return it for a search of so many seconds: bursts of a length of their own fit it."""
        return self

    def missing(self) -> str | None:
        """Return why it cannot be driven here and how to fix that; None when it can."""
        return None

    def lanes(self, threads: int) -> int:
        """Return how many lanes run side by side, each on `threads` threads; 0 is all CPUs."""
        return 1

    def splits(self, cpus: int) -> tuple[int, ...]:
        """Return the thread counts that a search must try, best bet first; none by default."""
        return ()

    def cycle(self, shapes: Sequence[str]) -> Sequence[int]:
        """Return which samples are run, in order, given the shape of each.

        By default at most 32, spread over the data.
        """
        return spread_indices(len(shapes), _CYCLE)

    @abstractmethod
    def drive(self, rig: Rig, span: Span) -> Driven:
        """Run a span and time it."""

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the workload's own numbers over all entries and all bursts' details.

        ``notes`` among them is a list of sentences for the reader.
        """
        return {}


def spread_indices(count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` indices, spread over `count`."""
    size = min(count, limit)
    return tuple(k * count // size for k in range(size))
