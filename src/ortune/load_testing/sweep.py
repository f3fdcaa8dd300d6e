"""Levels of load one after another, repeated in turns, and what they say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ortune.core.wording import count
from ortune.load_generation.summaries import percentile
from ortune.load_testing.level import Level
from ortune.load_testing.load import Load

_AGREE = 1.1
"""Repeats of a level whose rate or median differ by more do not agree."""
KNEE = (
    "the level with the most power: right answers a second over their mean latency "
    "(Kleinrock 1979; Jain, The Art of Computer Systems Performance Analysis, 1991, section 3.3)"
)


@dataclass(frozen=True)
class Repeated:
    """The repeats of one level.

    Attributes:
        load: All of it: the repeats have a share each.
        levels: As they were measured, in time.
    """

    load: Load
    levels: tuple[Level, ...]

    @cached_property
    def latency_ns(self) -> tuple[int, ...]:
        """Of every right answer."""
        return tuple(ns for one in self.levels for ns in one.latency_ns)

    @property
    def answered(self) -> int:
        """Right answers."""
        return sum(one.answered for one in self.levels)

    @property
    def errors(self) -> Mapping[str, int]:
        """Status -> requests, the most frequent first."""
        total: Counter[str] = Counter()
        for one in self.levels:
            total.update(one.errors)
        return dict(total.most_common())

    @property
    def elapsed_s(self) -> float:
        """What rates are counted over."""
        return sum(one.elapsed_s for one in self.levels)

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return sum(one.rate * one.elapsed_s for one in self.levels) / max(self.elapsed_s, 1e-9)

    @property
    def offered(self) -> float:
        """Requests a second that were due."""
        return sum(one.offered for one in self.levels) / len(self.levels)

    @property
    def mean_ns(self) -> float:
        """Mean latency of right answers."""
        return sum(self.latency_ns) / max(1, self.answered)

    def percentile(self, p: float) -> float | None:
        """Return a percentile in ns; None where fewer than 10 answers lie beyond it."""
        return percentile(self.latency_ns, p)

    @property
    def keeps_up(self) -> bool:
        """Whether every repeat does."""
        return all(one.keeps_up for one in self.levels)

    @property
    def client_busy(self) -> float:
        """Share of one CPU that the busiest client process used."""
        return max(one.client_busy for one in self.levels)

    @property
    def client_limits(self) -> bool:
        """Whether in some repeat the client was the limit."""
        return any(one.client_limits for one in self.levels)

    def disagreement(self) -> str:
        """Say how its repeats differ; empty where they agree within 10 %."""
        said = []
        for what, values in (
            ("requests/s", [one.rate for one in self.levels]),
            ("p50 in ms", [(one.percentile(50) or 0.0) / 1e6 for one in self.levels]),
        ):
            if min(values) * _AGREE < max(values):
                said.append(f"{what} {', '.join(f'{value:.4g}' for value in values)}")
        return "; ".join(said)


def run(
    loads: Sequence[Load],
    repeats: int,
    measure: Callable[[Load], Level],
    tell: Callable[[int, int], None],
) -> list[Repeated]:
    """Measure every level as often as asked and return them in the order given.

    The levels go up and then down, in turns: a machine that drifts does not favour one end, and
    shows as levels that disagree. A repeat has its share of the requests or the time.

    Args:
        tell: Given how many measurements are done, and of how many, before each.
    """
    order = list(turns(len(loads), repeats))
    found: dict[int, list[Level]] = {place: [] for place in range(len(loads))}
    for done, (place, repeat) in enumerate(order):
        load = loads[place]
        tell(done, len(order))
        share = replace(
            load,
            seconds=load.seconds / repeats,
            requests=-(-load.requests // repeats),
            seed=load.seed + repeat,
        )
        found[place].append(measure(share))
    return [Repeated(load, tuple(found[place])) for place, load in enumerate(loads)]


def turns(levels: int, repeats: int) -> Iterator[tuple[int, int]]:
    """Yield (level, repeat): up in even repeats, down in odd ones."""
    for repeat in range(repeats):
        for place in range(levels) if repeat % 2 == 0 else reversed(range(levels)):
            yield place, repeat


def knee(found: Sequence[Repeated]) -> int | None:
    """Return the place of the level with the most power, see `KNEE`; None with less than two.

    Levels that had errors or fell behind are beyond it.
    """
    powers = {
        place: one.rate / one.mean_ns
        for place, one in enumerate(found)
        if one.keeps_up and one.answered
    }
    if len(found) < 2 or not powers:
        return None
    return max(powers, key=lambda place: powers[place])


def most(found: Sequence[Repeated]) -> int | None:
    """Return the place of the level with most right answers a second; None without any."""
    answered = [place for place, one in enumerate(found) if one.answered]
    return max(answered, key=lambda place: found[place].rate, default=None)


def remarks(found: Sequence[Repeated], *, processes: int, shared: int) -> list[str]:
    """Return what a reader must know before the figures.

    Args:
        processes: Client processes.
        shared: CPUs that clients and the server share; 0 where the server is elsewhere.
    """
    made = []
    for one in found:
        name = str(one.load)
        if text := one.disagreement():
            made.append(f"{name}: its repeats do not agree: {text}")
        if one.client_limits:
            made.append(
                f"{name}: the client is the limit: a client process used "
                f"{100 * one.client_busy:.0f} % of a CPU, so the server may do better; give "
                f"--clients {2 * processes}, or run the client on another machine"
            )
        if one.load.open and one.answered and not one.errors and not one.keeps_up:
            made.append(
                f"{name}: the server falls behind: {one.rate:.4g} of {one.offered:.4g} requests/s "
                "were answered, and latency grows with the length of the run"
            )
        late = percentile([ns for level in one.levels for ns in level.late_ns], 99)
        if late is not None and one.answered and late > 0.1 * one.mean_ns and late > 1e6:
            made.append(
                f"{name}: 1 % of the requests were sent {late / 1e6:,.1f} ms or more after their "
                "intended start, which is part of their latency: the client had no CPU, or no "
                "connection left (--connections)"
            )
    if shared and found:
        made.append(
            f"clients and server share {count(shared, 'CPU')}: what the clients use, the server "
            "has not"
        )
    return made
