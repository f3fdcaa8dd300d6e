"""Levels of load and what they brought: runs in turns, rates, percentiles, the knee."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from ortune.core.errors import BadSettings
from ortune.core.wording import format_count
from ortune.measurement.arrivals.lanes import arrival_times, percentile
from ortune.serving.load_testing.requests import PercentileLimit

CLOCK = (
    "from the intended start of a request to the last byte of its answer, by the clock of the "
    "client's process (monotonic, nanoseconds); in a closed loop the start is the caller's own, "
    "in an open loop its place in the schedule, sent late or not"
)
KNEE = (
    "the level with the most power: right answers a second over their mean latency "
    "(Kleinrock 1979; Jain, The Art of Computer Systems Performance Analysis, 1991, section 3.3)"
)
CLIENT_LIMIT = 0.85
"""Share of one CPU from which on a client process, an event loop, is the limit."""
_KEEPS_UP = 0.95
"""Share of the offered rate that must be answered: less, and a queue grows."""
_AGREE = 1.1
"""Runs of a level whose rate or median differ by more do not agree."""


@dataclass(frozen=True)
class Load:
    """Callers that each wait for their answer (closed loop), or arrivals at a rate (open loop).

    Arrivals are Poisson's, answered or not. Requests are issued for some seconds, and what is
    under way then is still awaited; or so many of them are.
    """

    concurrency: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check it. Raises BadSettings: it is neither kind or both, or has no end."""
        if (self.concurrency > 0) == (self.rate > 0):
            raise BadSettings("a load is a concurrency or a rate", fix="give one of them")
        if not (self.seconds > 0 or self.requests > 0):
            raise BadSettings(f"{self} has no end", fix="give seconds or requests")

    @property
    def is_open(self) -> bool:
        """Whether requests come whether or not earlier ones are answered."""
        return self.rate > 0

    def draw_schedule(self) -> list[int]:
        """Return the intended starts of an open loop, nanoseconds from its beginning.

        The gaps are drawn and then stretched so that the arrivals come at the rate exactly: a
        Poisson process of which the number in a given time is known.
        """
        total = max(2, self.requests or round(self.rate * self.seconds))
        times = arrival_times(self.rate, total, (self.seed, 0))
        return [round(moment) for moment in times * (1e9 * total / self.rate / times[-1])]

    def split_callers(self, parts: int) -> list[Load]:
        """Divide a closed loop among client processes; each has a caller at least."""
        parts = min(parts, self.concurrency, self.requests or self.concurrency)
        edges = [
            (k * self.concurrency // parts, k * self.requests // parts) for k in range(parts + 1)
        ]
        return [
            replace(self, concurrency=high[0] - low[0], requests=high[1] - low[1])
            for low, high in pairwise(edges)
        ]

    def __str__(self) -> str:
        """Name it as rows of a sweep do."""
        return f"{self.rate:g} requests/s" if self.is_open else f"concurrency {self.concurrency}"


@dataclass(frozen=True)
class Run:
    """One stretch of requests without a pause.

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
        server: What the server's own statistics of the model grew by: ``answered``, and the
            counts and nanoseconds that its mean times are made of; None where it has none.
        server_cpu_s: CPU seconds of its processes; None where they are not known.
        server_rss: Bytes that they held at its end.
    """

    load: Load
    latency_ns: tuple[int, ...]
    late_ns: tuple[int, ...]
    errors: Mapping[str, int]
    examples: Mapping[str, str]
    elapsed_s: float
    client_cpu_s: float
    client_busy: float
    server: Mapping[str, int] | None = None
    server_cpu_s: float | None = None
    server_rss: int | None = None

    @property
    def rate(self) -> float:
        """Right answers a second; errors are no throughput."""
        # The first end of an open loop opens the count.
        gaps = max(0, len(self.latency_ns) - self.load.is_open)
        return gaps / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def keeps_up(self) -> bool:
        """Whether nothing failed and, in an open loop, answers come as fast as requests do."""
        return not self.errors and self.rate >= _KEEPS_UP * self.load.rate


@dataclass(frozen=True)
class Level:
    """One level of load, and what its runs, of a share each, brought together in time."""

    load: Load
    runs: tuple[Run, ...]

    @cached_property
    def latency_ns(self) -> tuple[int, ...]:
        """Latency of every right answer."""
        return tuple(ns for run in self.runs for ns in run.latency_ns)

    @property
    def answer_count(self) -> int:
        """Requests with a right answer."""
        return len(self.latency_ns)

    @cached_property
    def errors(self) -> Mapping[str, int]:
        """Status -> requests without a right answer, the most frequent first."""
        return dict(sum((Counter(run.errors) for run in self.runs), Counter[str]()).most_common())

    @property
    def failure_count(self) -> int:
        """Requests without a right answer."""
        return sum(self.errors.values())

    @property
    def requests(self) -> int:
        """Requests of all runs, answered or not."""
        return self.answer_count + self.failure_count

    @property
    def rate(self) -> float:
        """Right answers a second; errors are no throughput."""
        elapsed_s = sum(run.elapsed_s for run in self.runs)
        return sum(run.rate * run.elapsed_s for run in self.runs) / max(elapsed_s, 1e-9)

    @property
    def mean_ns(self) -> float:
        """Mean latency of right answers; 0 without any."""
        return sum(self.latency_ns) / max(1, self.answer_count)

    def compute_percentile(self, p: float) -> float | None:
        """Return a percentile in ns; None where fewer than 10 answers lie beyond it."""
        return percentile(self.latency_ns, p)

    @property
    def late_p99_ns(self) -> float | None:
        """How much later than intended the last 1 % were sent; None in a closed loop."""
        return percentile([ns for run in self.runs for ns in run.late_ns], 99)

    @property
    def keeps_up(self) -> bool:
        """Whether nothing failed and, in an open loop, answers come as fast as requests do."""
        return all(run.keeps_up for run in self.runs)

    @property
    def client_busy(self) -> float:
        """Share of one CPU that the busiest client process used."""
        return max(run.client_busy for run in self.runs)

    @property
    def client_limits(self) -> bool:
        """Whether a client process was busy nearly all the time: then it is what was measured."""
        return self.client_busy >= CLIENT_LIMIT

    def keeps_limit(self, limit: PercentileLimit) -> bool | None:
        """Whether it keeps a limit; None where too few answers tell.

        A level with an error, or that answers more slowly than requests come, does not.
        """
        if not self.keeps_up or not self.answer_count:
            return False
        value = self.compute_percentile(limit.percentile)
        return None if value is None else value <= limit.limit_ns

    def describe_disagreement(self) -> str:
        """Say how its runs differ; empty where they agree within 10 %."""
        texts = []
        for name, values in (
            ("requests/s", [run.rate for run in self.runs]),
            ("p50 in ms", [(percentile(run.latency_ns, 50) or 0.0) / 1e6 for run in self.runs]),
        ):
            if min(values) * _AGREE < max(values):
                texts.append(f"{name} {', '.join(f'{value:.4g}' for value in values)}")
        return "; ".join(texts)


def sweep_loads(
    loads: Sequence[Load],
    repeats: int,
    measure: Callable[[Load], Level],
    report: Callable[[int, int], None],
) -> list[Level]:
    """Measure every load as often as asked and return their levels in the order given.

    The loads go up and then down, in turns: a machine that drifts does not favour one end, and
    shows as runs that disagree. A repeat has its share of the requests or the time. `report` is
    given how many measurements are done, and of how many, before each.
    """
    runs: dict[int, list[Run]] = {place: [] for place in range(len(loads))}
    for repeat in range(repeats):
        up = list(enumerate(loads))
        for turn, (place, load) in enumerate(up if repeat % 2 == 0 else up[::-1]):
            report(repeat * len(loads) + turn, repeats * len(loads))
            share = replace(
                load,
                seconds=load.seconds / repeats,
                requests=-(-load.requests // repeats),
                seed=load.seed + repeat,
            )
            runs[place] += measure(share).runs
    return [Level(load, tuple(runs[place])) for place, load in enumerate(loads)]


def find_knee(levels: Sequence[Level]) -> int | None:
    """Return the place of the level with the most power, see `KNEE`; None with less than two."""
    fit = [place for place, level in enumerate(levels) if level.keeps_up and level.answer_count]
    if len(levels) < 2:
        return None
    return max(fit, key=lambda place: levels[place].rate / levels[place].mean_ns, default=None)


def find_fastest(levels: Sequence[Level]) -> int | None:
    """Return the place of the level with most right answers a second; None without any."""
    answered = [place for place, level in enumerate(levels) if level.answer_count]
    return max(answered, key=lambda place: levels[place].rate, default=None)


def list_remarks(
    levels: Sequence[Level],
    *,
    processes: int,
    shared: int,
    servers: int = 1,
    limit: PercentileLimit | None = None,
) -> list[str]:
    """Return what a reader must know before the figures.

    `processes` are the clients', `servers` the processes behind the port, `shared` the CPUs of
    both, 0 where the server is elsewhere; `limit` is what the levels are to keep.
    """
    texts = []
    for level in levels:
        name = str(level.load)
        if differ := level.describe_disagreement():
            texts.append(f"{name}: its repeats do not agree: {differ}")
        if level.client_limits:
            texts.append(
                f"{name}: the client is the limit: a client process used "
                f"{100 * level.client_busy:.0f} % of a CPU, so the server may do better; give "
                f"--clients {2 * processes}, or run the client on another machine"
            )
        if level.answer_count and not level.errors and not level.keeps_up:
            texts.append(
                f"{name}: the server falls behind: {level.rate:.4g} of {level.load.rate:.4g} "
                "requests/s were answered, and latency grows with the length of the run"
            )
        late = level.late_p99_ns
        if late is not None and level.answer_count and late > 0.1 * level.mean_ns and late > 1e6:
            texts.append(
                f"{name}: 1 % of the requests were sent {late / 1e6:,.1f} ms or more after their "
                "intended start, which is part of their latency: the client had no CPU, or no "
                "connection left (--connections)"
            )
    if shared and levels:
        texts.append(
            f"clients and server share {format_count(shared, 'CPU')}: what the clients use, the "
            "server "
            "has not"
        )
    if servers > 1:
        texts.append(
            "queue, compute and rows a run are those of one of "
            f"{format_count(servers, 'server process', 'server processes')}: each counts its own"
        )
    texts += [
        f"{level.load}: whether {limit} holds is not known: fewer than 10 of its "
        f"{level.answer_count:,} answers lie beyond p{limit.percentile:g}; give more --requests"
        for level in levels
        if limit and level.keeps_limit(limit) is None
    ]
    return texts
