"""Servers of a bundle with different settings, and their score for a goal."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ortune.bundle.serving import write
from ortune.engine.instances import Serving
from ortune.load_testing.goal.objective import requests, sustained
from ortune.load_testing.level import Level
from ortune.load_testing.load import Load
from ortune.load_testing.measure import Calling, clients
from ortune.load_testing.requests import LoadTest
from ortune.load_testing.serving import serving
from ortune.load_testing.slo import LatencyLimit

ROUGHLY, WELL = 4, 10
"""Answers beyond the percentile while settings are looked for, and when they are confirmed."""
LEVEL_S = 2.0
"""Seconds of a level at least: a queue that grows, and a neighbour's bursts, take time to show."""
CALLERS = 32
"""Of the closed loop that tells how much a server can do at all."""
_LONE_S, _FULL_S, _WARM_UP_S = 1.0, 2.0, 0.5
_CAUTION = 0.7
"""Share of that rate at which the first search for a goal begins."""
_LEAST = 0.1
"""Share of one caller's rate below which no rate is asked about."""
_LOST_NS = 6e10
"""A request without an answer counts as so long."""


class Measures(Protocol):
    """What puts load on one server."""

    def measure(self, load: Load, *, warm_up_s: float = 0.5) -> Level:
        """Put one level of load on it."""
        ...


@dataclass
class Scores:
    """The score of servers for a goal, higher is better; it knows what to ask next.

    Attributes:
        rate: Requests a second at which the percentile counts; 0: the highest rate that keeps the
            goal counts.
        beyond: Answers beyond the percentile that tell it.
        client_limits: In some level the client was busy nearly all the time.
    """

    goal: LatencyLimit
    rate: float = 0.0
    beyond: int = ROUGHLY
    client_limits: bool = False
    _bounds: tuple[float, float] = (1e-3, 1e6)
    _last: float = 1.0
    _turns: int = 0

    def spelled(self, score: float) -> str:
        """Return a score in words."""
        if self.rate:
            tail = f"p{self.goal.percentile:g}"
            return f"{tail} of {1e3 / score:.4g} ms at {self.rate:g} requests/s"
        if score <= self._bounds[0]:
            return f"no rate with {self.goal}"
        return f"{score:.4g} requests/s with {self.goal}"

    def begin(self, server: Measures) -> None:
        """Find out what the defaults' server can do at all."""
        if self.rate:
            return
        lone = server.measure(Load(concurrency=1, seconds=_LONE_S), warm_up_s=_WARM_UP_S)
        full = server.measure(Load(concurrency=CALLERS, seconds=_FULL_S), warm_up_s=_WARM_UP_S)
        least = max(_LEAST * lone.rate, 1e-3)
        self._bounds = least, 10 * max(full.rate, lone.rate, least)
        self._last = _CAUTION * full.rate

    def level_s(self, beyond: int) -> float:
        """Return the seconds of a level, about.

        Args:
            beyond: Answers beyond the percentile.
        """
        return max(LEVEL_S, requests(self.goal.percentile, beyond) / (self.rate or self._last))

    def turn(self, servers: Sequence[Measures]) -> list[float]:
        """Score servers one after the other, all by the same arrivals and from the same rate."""
        self._turns += 1
        if self.rate:
            return [1e9 / self._percentile(one, self.rate) for one in servers]
        start = self._last
        found = [self._sustained(one, start) for one in servers]
        self._last = statistics.geometric_mean(found)
        return found

    def _sustained(self, server: Measures, start: float) -> float:
        steps = sustained(self.goal.limit_ns, start, *self._bounds)
        rate = next(steps)
        while True:
            try:
                rate = steps.send(self._percentile(server, rate))
            except StopIteration as done:
                return float(done.value)

    def _percentile(self, server: Measures, rate: float) -> float:
        """Return the goal's percentile at a rate in ns; what was not answered took forever."""
        wanted = max(requests(self.goal.percentile, self.beyond), math.ceil(LEVEL_S * rate))
        load = Load(rate=rate, requests=wanted, seed=self._turns)
        level = server.measure(load, warm_up_s=_WARM_UP_S)
        self.client_limits |= level.client_limits
        every = [*level.latency_ns, *[_LOST_NS] * level.failed] or [_LOST_NS]
        return float(np.percentile(every, self.goal.percentile))


@dataclass(frozen=True)
class Servers:
    """Starts servers of one bundle, as a load test would.

    Attributes:
        folder: For copies of the bundle.
    """

    asked: LoadTest
    folder: Path

    @property
    def options(self) -> list[str]:
        """More words for `ortune serve`."""
        asked = self.asked
        on = ["--on", asked.on] if asked.on else []
        many = ["--processes", str(asked.processes)] if asked.processes > 1 else []
        return [*shlex.split(asked.serve), *on, *many]

    @contextmanager
    def started(self, how: Serving, side: str) -> Iterator[Measures]:
        """Serve the bundle with some settings until the block ends.

        Args:
            side: Tells servers of the same time apart.

        Raises:
            OrtuneError: It does not get ready, or gives no answer.
        """
        asked, bundle = self.asked, Path(self.asked.target)
        copy = self.folder / side / bundle.name  # a model is named like its file
        copy.parent.mkdir(exist_ok=True)
        write(bundle, copy, how)
        with (
            serving(copy, options=self.options) as server,
            clients(
                server.url(asked.protocol),
                model=asked.model,
                data=asked.data,
                shapes=asked.shapes,
                ranges=asked.ranges,
                batch=asked.batch,
                calling=Calling(asked.clients, asked.connections, asked.timeout),
            ) as found,
        ):
            yield found
