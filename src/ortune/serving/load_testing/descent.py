"""What a goal's search decides: which settings to try, where a rate lies, what is confirmed.

Nothing is measured here: scores and percentiles are asked for.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ortune.bundle.engine.instances import Serving
from ortune.core import wording
from ortune.core.trial import Interval
from ortune.measurement.timing.stats import student_quantile
from ortune.search.recipe.descent import walk_coordinates

MARGIN = 1.03
"""What settings must bring over those that they start from; less is noise more often than not."""
CONFIDENCE = 0.95
STEP = 1.08
"""Rates closer than this are not told apart by asking; between them the percentile decides."""
COORDINATES = ("instances", "max_batch", "threads", "max_delay_us")
"""In the order that they are tried in: what mostly brings most comes first."""
_LEAST_SD = 0.01
"""Of a pair's log-ratio: some pairs that agree by chance are no proof of none."""
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_DELAYS_US = (0, 100, 300, 1000, 3000, 10_000)
_DELAYED = 4
"""No request waits for others for more than this part of the limit."""
_SPARE, _FEWEST_REQUESTS = 1.15, 100
"""Arrivals are drawn: so many times the requests that are needed are asked for, and so many at
least."""


@dataclass(frozen=True)
class ServingSpace:
    """What a bundle can be served with on this machine; `joins`: requests can be joined at all."""

    cpus: int
    threads: int
    joins: bool
    limit_us: float

    def list_neighbours(self, at: Serving, name: str, direction: int) -> Iterator[Serving]:
        """Yield settings along a coordinate, the next first; `direction` is 1 or -1."""
        here = self._read_coordinate(at, name)
        beyond = [value for value in self._list_values(at, name) if (value - here) * direction > 0]
        for value in sorted(beyond, reverse=direction < 0):
            changed: dict[str, Any] = {name: value}
            beside = replace(at, **changed)
            # What has no effect is not said.
            threads = min(beside.threads, self._compute_cpu_share(beside))
            plain = min(self.threads, self._compute_cpu_share(beside))
            delay = beside.max_delay_us if beside.max_batch > 1 else 0
            threads = 0 if threads == plain else threads
            yield replace(beside, threads=threads, max_delay_us=delay)

    def spell_settings(self, at: Serving) -> str:
        """Return settings as rows of a table have them."""
        instances = wording.format_count(at.instances, "instance")
        threads = wording.format_count(self._read_coordinate(at, "threads"), "thread")
        return f"{instances}, {threads}, max_batch {at.max_batch}, delay {at.max_delay_us} us"

    def _compute_cpu_share(self, at: Serving) -> int:
        return max(1, self.cpus // at.instances)

    def _read_coordinate(self, at: Serving, name: str) -> int:
        if name == "threads":
            return min(at.threads or self.threads, self._compute_cpu_share(at))
        return int(getattr(at, name))

    def _list_values(self, at: Serving, name: str) -> Sequence[int]:
        if name in ("instances", "threads"):
            most = self.cpus if name == "instances" else self._compute_cpu_share(at)
            return sorted({*(1 << n for n in range(most.bit_length())), most})
        if not self.joins:
            return ()
        if name == "max_batch":
            return _ROWS
        longest = self.limit_us / _DELAYED if at.max_batch > 1 else 0
        return [delay for delay in _DELAYS_US if delay <= longest]


@dataclass
class TriedSettings:
    """Settings and their scores over the defaults', a pair each; more is better."""

    settings: Serving
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The geometric mean; 0 where they could not be served."""
        if not self.ratios or min(self.ratios) <= 0:
            return 0.0
        return statistics.geometric_mean(self.ratios)


def descend_settings(
    space: ServingSpace, start: Serving, score: Callable[[Serving], float | None]
) -> list[TriedSettings]:
    """Walk from the defaults along one coordinate after the other, as long as it gets better.

    `score` gives settings' score over the defaults', both measured in one pair; None when the time
    is over. Settings that seem better in a first pair get a second. Returns what was tried: where
    the walk ended first, then the rest by what its pairs said, since a lone pair's luck is no
    rank. Empty where there is nothing to try.
    """
    descent = _Descent(space, start, score)
    before: Serving | None = None
    while before != descent.best and not descent.time_is_over:
        before = descent.best
        descent.walk_round()
    candidates = [c for c in descent.tried.values() if c.settings != start and c.ratios]
    return sorted(candidates, key=lambda other: (other.settings != descent.best, -other.ratio))


class _Descent:
    """One walk over the settings: what was tried, and the best of it."""

    def __init__(
        self, space: ServingSpace, start: Serving, score: Callable[[Serving], float | None]
    ) -> None:
        self._space, self._score = space, score
        self.tried = {start: TriedSettings(start, [1.0])}
        self.best, self.time_is_over = start, False

    def walk_round(self) -> None:
        """Walk along every coordinate once; end where the time is over."""
        for _, settings in walk_coordinates(lambda: self.best, self._list_directions):
            candidate = self.tried[settings] = TriedSettings(settings)
            to_beat = self.tried[self.best].ratio * MARGIN
            for _pair in range(2):
                if (ratio := self._score(settings)) is None:
                    self.time_is_over = True
                    return
                candidate.ratios.append(ratio)
                if candidate.ratio <= to_beat:
                    break
            else:
                self.best = settings

    def _list_directions(self, _: Serving) -> Mapping[str, Iterator[Serving]]:
        return {
            f"{name} {direction}": self._walk_direction(name, direction)
            for name in COORDINATES
            for direction in (1, -1)
        }

    def _walk_direction(self, name: str, direction: int) -> Iterator[Serving]:
        """Yield further settings while the last was better."""
        for settings in self._space.list_neighbours(self.best, name, direction):
            if settings in self.tried:
                return
            yield settings
            if settings != self.best:
                return


def estimate_ratio(ratios: Sequence[float]) -> Interval | None:
    """Return the mean ratio of fresh pairs with its 95 % interval, None for less than two.

    Student's t over the pairs' log-ratios. The pairs must be none that anything was chosen by.
    """
    if len(ratios) < 2 or min(ratios) <= 0:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    middle, sd = statistics.fmean(logs), max(statistics.stdev(logs), _LEAST_SD)
    half = student_quantile(CONFIDENCE, len(logs) - 1) * sd / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def requests_needed(percentile: float, beyond: int) -> int:
    """Return how many requests tell a percentile by so many answers beyond it."""
    needed = math.ceil(round(_SPARE * beyond / (1 - percentile / 100), 6))
    return max(_FEWEST_REQUESTS, needed)


def find_sustained_rate(
    measure: Callable[[float], float], limit: float, start: float, least: float, most: float
) -> float:
    """Find the highest rate whose percentile keeps a limit, in the unit of what `measure` gives.

    Rates grow, or shrink, from `start` by steps that grow themselves; between one that keeps the
    limit and one that does not they are halved until they are a `STEP` apart. There the logarithm
    of the percentile is taken to be a line. Where none keeps the limit it is `least`, where all do
    `most`.
    """
    low: tuple[float, float] | None = None
    high: tuple[float, float] | None = None
    rate, stride = min(max(start, least), most), STEP
    while True:
        percentile = measure(rate)
        if percentile <= limit:
            low = rate, percentile
            if rate >= most:
                return most
        else:
            high = rate, percentile
            if rate <= least:
                return least
        if low and high and high[0] <= low[0] * STEP * 1.001:
            if not math.isfinite(high[1]) or low[1] <= 0:
                return low[0]
            share = math.log(limit / low[1]) / math.log(high[1] / low[1])
            return float(low[0] * (high[0] / low[0]) ** share)
        if low and high:
            rate = math.sqrt(low[0] * high[0])
        else:
            rate = min(max(rate * stride if low else rate / stride, least), most)
            stride = min(stride**2, 4.0)
