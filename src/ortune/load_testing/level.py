"""What one level of load brought: every latency, every error, and what both sides spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ortune.load_generation.summaries import percentile
from ortune.load_testing.load import Load
from ortune.load_testing.usage import ServerTimes

CLOCK = (
    "from the intended start of a request to the last byte of its answer, by the clock of the "
    "client's process (monotonic, nanoseconds); in a closed loop the start is the caller's own, "
    "in an open loop its place in the schedule, sent late or not"
)
LIMIT = 0.85
"""Share of one CPU from which on a client process, an event loop, is the limit."""
_BEHIND = 0.95
"""Share of the offered rate that must be answered: less, and a queue grows."""


@dataclass(frozen=True)
class AnswerKind:
    """Answers to one sample that are equal to the byte.

    Attributes:
        sample: Which.
        count: How many.
        head: Bytes of JSON at the body's beginning; -1 where there is no such split.
        body: One of them.
    """

    sample: int
    count: int
    head: int
    body: Path


@dataclass(frozen=True)
class Level:
    """One stretch of requests.

    Attributes:
        latency_ns: Of each right answer, in order of the intended starts; see `CLOCK`.
        late_ns: Of each request, how much later than intended it was sent; empty in a closed
            loop. It is part of the latency, and the client's doing.
        errors: Status, or what became of the connection -> requests.
        examples: Status -> text of its first error.
        elapsed_s: What rates are counted over. In a closed loop from the first start to the last
            end; in an open one from the first end to the last, the arrivals' own stretch when
            the server keeps up.
        client_cpu_s: CPU seconds of all client processes.
        client_busy: Share of one CPU that the busiest client process used.
        server: By the server's own statistics; None where it has none.
        server_cpu_s: CPU seconds of its processes; None where they are not known.
        server_rss: Bytes that they held at its end.
        answers: What was kept to be compared.
        not_kept: Answers that were not.
    """

    load: Load
    latency_ns: tuple[int, ...]
    late_ns: tuple[int, ...]
    errors: Mapping[str, int]
    examples: Mapping[str, str]
    elapsed_s: float
    client_cpu_s: float
    client_busy: float
    server: ServerTimes | None = None
    server_cpu_s: float | None = None
    server_rss: int | None = None
    answers: tuple[AnswerKind, ...] = field(default=(), repr=False)
    not_kept: int = 0

    @property
    def answered(self) -> int:
        """Requests with a right answer."""
        return len(self.latency_ns)

    @property
    def failed(self) -> int:
        """Requests without one."""
        return sum(self.errors.values())

    @property
    def requests(self) -> int:
        """All of them."""
        return self.answered + self.failed

    @property
    def rate(self) -> float:
        """Right answers a second; errors are no throughput."""
        gaps = max(0, self.answered - self.load.open)  # an open loop's first end opens the count
        return gaps / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def mean_ns(self) -> float:
        """Mean latency of right answers; 0 without any."""
        return sum(self.latency_ns) / max(1, self.answered)

    def percentile(self, p: float) -> float | None:
        """Return a percentile in ns; None where fewer than 10 answers lie beyond it."""
        return percentile(self.latency_ns, p)

    @property
    def keeps_up(self) -> bool:
        """Whether nothing failed and, in an open loop, answers come as fast as requests do."""
        return not self.errors and (not self.load.open or self.rate >= _BEHIND * self.offered)

    @property
    def offered(self) -> float:
        """Requests a second that were due."""
        return self.load.rate if self.load.open else self.rate

    @property
    def client_limits(self) -> bool:
        """Whether a client process was busy nearly all the time: then it is what was measured."""
        return self.client_busy >= LIMIT
