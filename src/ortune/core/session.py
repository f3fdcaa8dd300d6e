"""A loaded model, as a backend gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from ortune.core.recorded import Recorded

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Name -> array. The batch dimension, where there is one, comes first."""


class Session(Protocol):
    """A loaded model. Workers and the engine are its only owners."""

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once and return every output by name."""
        ...

    def placement(self) -> Mapping[str, int]:
        """Execution provider -> nodes it took, from the runtime's own record; empty if unknown."""
        ...

    def clock(self) -> int:
        """Monotonic time in nanoseconds; a scripted backend brings its own."""
        ...

    def waited(self) -> int:
        """Nanoseconds that threads stood in the run queue so far, -1 where unknown."""
        ...


@runtime_checkable
class Recording(Session, Protocol):
    """A session whose runtime writes down what every node takes."""

    def recorded(self, runs: int) -> Recorded:
        """End the recording and return the last `runs` runs; it can be asked once."""
        ...
