"""The settings that a goal search may choose from, and which lie next to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ortune.core import wording
from ortune.engine.instances import Serving

COORDINATES = ("instances", "max_batch", "threads", "max_delay_us")
"""In the order that they are tried in: what mostly brings most comes first."""
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_DELAYS_US = (0, 100, 300, 1000, 3000, 10_000)
_DELAYED = 4
"""No request waits for others for more than this part of the limit."""


@dataclass(frozen=True)
class ServingSpace:
    """What a bundle can be served with on this machine.

    Attributes:
        cpus: That one server process has.
        threads: That its plan was measured with.
        joins: Requests can be joined at all.
        limit_us: Of the goal.
    """

    cpus: int
    threads: int
    joins: bool
    limit_us: float

    def neighbours(self, at: Serving, name: str, direction: int) -> Iterator[Serving]:
        """Yield what lies beyond some settings along one coordinate, the next first.

        Args:
            direction: 1 or -1.
        """
        values, here = self._values(at, name), self._value(at, name)
        beyond = [one for one in values if (one - here) * direction > 0]
        for one in sorted(beyond, reverse=direction < 0):
            changed: dict[str, Any] = {name: one}
            yield self._fitting(replace(at, **changed))

    def spelled(self, at: Serving) -> str:
        """Return settings as rows of a table have them."""
        parts = [
            wording.count(at.instances, "instance"),
            wording.count(self._value(at, "threads"), "thread"),
            f"max_batch {at.max_batch}",
            f"delay {at.max_delay_us} us",
        ]
        return ", ".join(parts)

    def _share(self, at: Serving) -> int:
        return max(1, self.cpus // at.instances)

    def _value(self, at: Serving, name: str) -> int:
        if name == "threads":
            return min(at.threads or self.threads, self._share(at))
        return int(getattr(at, name))

    def _values(self, at: Serving, name: str) -> Sequence[int]:
        if name == "instances":
            return _doubled(self.cpus)
        if name == "threads":
            return _doubled(self._share(at))
        if not self.joins:
            return ()
        if name == "max_batch":
            return _ROWS
        most = self.limit_us / _DELAYED if at.max_batch > 1 else 0
        return [one for one in _DELAYS_US if one <= most]

    def _fitting(self, at: Serving) -> Serving:
        """Return settings without what has no effect in them."""
        threads = min(at.threads, self._share(at))
        plain = min(self.threads, self._share(at))
        delay = at.max_delay_us if at.max_batch > 1 else 0
        return replace(at, threads=0 if threads == plain else threads, max_delay_us=delay)


def _doubled(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the last."""
    return sorted({*(1 << n for n in range(most.bit_length())), most})
