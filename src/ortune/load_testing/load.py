"""What one level of a load test asks of a server, and when each request is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ortune.core.errors import BadSettings
from ortune.workloads.arrivals import Arrivals


@dataclass(frozen=True)
class Load:
    """Callers that each wait for their answer (closed loop), or arrivals at a rate (open loop).

    Attributes:
        concurrency: Callers of a closed loop; 0 for an open one.
        rate: Requests a second of an open loop: Poisson arrivals, answered or not.
        seconds: For how long requests are issued; what is under way then is still awaited.
        requests: How many are issued, in place of `seconds`.
        seed: Of the arrivals.
    """

    concurrency: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            BadSettings: It is neither kind or both, or has no end.
        """
        if (self.concurrency > 0) == (self.rate > 0):
            raise BadSettings("a load is a concurrency or a rate", fix="give one of them")
        if not (self.seconds > 0 or self.requests > 0):
            raise BadSettings(f"{self} has no end", fix="give seconds or requests")

    @property
    def open(self) -> bool:
        """Whether requests come whether or not earlier ones are answered."""
        return self.rate > 0

    @property
    def planned_s(self) -> float:
        """Seconds that it takes, as far as that is known before: 0 for a number of requests."""
        if self.requests and self.open:
            return self.requests / self.rate
        return 0.0 if self.requests else self.seconds

    def schedule(self) -> list[int]:
        """Return the intended starts of an open loop, nanoseconds from its beginning.

        The gaps are drawn and then stretched so that the arrivals come at the rate exactly: a
        Poisson process of which the number in a given time is known.
        """
        seconds = self.requests / self.rate if self.requests else self.seconds
        drawn = Arrivals(rate=self.rate, seconds=seconds, seed=self.seed).schedule(0)
        stretch = 1e9 * len(drawn) / self.rate / drawn[-1]
        return [round(moment * stretch) for moment in drawn]

    def shares(self, parts: int) -> list[Load]:
        """Divide a closed loop among client processes; each has a caller at least."""
        parts = min(parts, self.concurrency, self.requests or self.concurrency)
        callers = _divided(self.concurrency, parts)
        requests = _divided(self.requests, parts)
        return [
            replace(self, concurrency=count, requests=most)
            for count, most in zip(callers, requests, strict=True)
        ]

    def __str__(self) -> str:
        """Name it as rows of a sweep do."""
        if self.open:
            return f"{self.rate:g} requests/s"
        return f"concurrency {self.concurrency}"


def _divided(total: int, parts: int) -> Sequence[int]:
    edges = [k * total // parts for k in range(parts + 1)]
    return [high - low for low, high in pairwise(edges)]


def dealt(schedule: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Deal the arrivals of one schedule out: together the client processes keep it exactly."""
    return [schedule[part::parts] for part in range(parts)]
