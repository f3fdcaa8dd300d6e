"""Search settings for a goal on real servers, confirm the best, and write it into a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from ortune.bundle.serving import with_serving, write
from ortune.core import wording
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Progress, Sink, silent
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.outputs import free
from ortune.core.trial import Interval
from ortune.data.sources import Source
from ortune.engine import archive, joining
from ortune.engine.instances import Serving
from ortune.engine.load import load
from ortune.engine.signing import signature_of
from ortune.load_testing import slo
from ortune.load_testing.goal.descent import Tried, confirmed, descend
from ortune.load_testing.goal.result import GoalResult, TriedRow
from ortune.load_testing.goal.servers import WELL, Measures, Scores, Servers
from ortune.load_testing.goal.space import Space

FEWEST_PAIRS, PAIRS = 3, 6
"""Fresh pairs of servers that confirm: the fewest that say anything, and how many are meant."""
_START_S = 4.0
"""What starting a server takes, about."""
UNSIGNED = "the signature is of the file as it was: the copy has none (ortune pack --sign)"


class Starts(Protocol):
    """What starts a server of settings."""

    def started(self, how: Serving, side: str) -> AbstractContextManager[Measures]:
        """Serve until the block ends."""
        ...


class Search:
    """One search, whose servers, scores and clock are given.

    Args:
        seconds: Time for all of it. What confirms is kept back.
    """

    def __init__(
        self,
        servers: Starts,
        space: Space,
        scores: Scores,
        seconds: float,
        sink: Sink = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers, self._space, self._scores = servers, space, scores
        self._sink, self._clock = sink, clock
        self._seconds, self._began = seconds, clock()
        self._pair_s = 0.0
        self._pairs = 0
        self._notes: list[str] = []

    def run(self) -> GoalResult:
        """Search, confirm, and say what came of it; bundle and goal are left to the caller.

        Raises:
            OrtuneError: The defaults cannot be served.
        """
        defaults = Serving()
        with self._servers.started(defaults, "defaults") as home:
            self._tell("the defaults")
            self._scores.begin(home)
            before, took = self._timed(lambda: self._scores.turn([home])[0])
            self._pair_s = 2 * took + _START_S
            tried = self._tried(home, defaults)
        fresh = self._fresh(tried[0].settings) if tried else []
        ratio = confirmed(fresh)
        better = ratio is not None and ratio.low > 1
        chosen = tried[0].settings if better else defaults
        if self._scores.client_limits:
            self._notes.append(
                "the client was the limit in some levels: the settings may differ by more"
            )
        return GoalResult(
            bundle="",
            goal="",
            before=self._scores.spelled(before),
            defaults=self._space.spelled(defaults),
            choice=self._space.spelled(chosen),
            chosen=chosen,
            better=better,
            ratio=ratio,
            pairs=len(fresh),
            tried=tuple(
                TriedRow(self._space.spelled(one.settings), one.ratio, len(one.ratios))
                for one in tried
            ),
            verdict=self._verdict(tried, ratio, len(fresh)),
            seconds=self._clock() - self._began,
            notes=tuple(self._notes),
        )

    @property
    def _left(self) -> float:
        return self._seconds - (self._clock() - self._began)

    def _tried(self, home: Measures, defaults: Serving) -> list[Tried]:
        """Walk through the settings while there is time for that and for what confirms."""
        steps = descend(self._space, defaults)
        try:
            one = next(steps)
            while True:
                enough = self._left >= (1 + FEWEST_PAIRS) * self._pair_s
                one = steps.send(self._pair(home, one) if enough else None)
        except StopIteration as done:
            tried: list[Tried] = done.value
            return tried

    def _pair(self, home: Measures, how: Serving) -> float:
        """Return the score of settings over the defaults', 0 where they cannot be served."""
        self._tell(self._space.spelled(how))
        try:
            with self._servers.started(how, "candidate") as other:
                found, took = self._timed(lambda: self._ratio(home, other))
        except OrtuneError as error:
            self._notes.append(f"{self._space.spelled(how)}: {error.what}")
            return 0.0
        self._pair_s = (self._pair_s + took + _START_S) / 2
        return found

    def _fresh(self, how: Serving) -> list[float]:
        """Measure settings and defaults in pairs of new servers."""
        self._scores.beyond, made = WELL, list[float]()
        while len(made) < FEWEST_PAIRS or (len(made) < PAIRS and self._left >= self._pair_s):
            self._tell(f"confirming {self._space.spelled(how)}")
            try:
                with (
                    self._servers.started(Serving(), "defaults") as home,
                    self._servers.started(how, "candidate") as other,
                ):
                    found, took = self._timed(lambda: self._ratio(home, other))
            except OrtuneError as error:
                self._notes.append(f"a pair that was to confirm failed: {error.what}")
                return []
            self._pair_s = took + _START_S
            made.append(found)
        return made

    def _ratio(self, home: Measures, other: Measures) -> float:
        """Measure both in turn; which goes first changes from pair to pair."""
        self._pairs += 1
        if self._pairs % 2:
            before, after = self._scores.turn([home, other])
        else:
            after, before = self._scores.turn([other, home])
        return after / before

    def _timed(self, call: Callable[[], float]) -> tuple[float, float]:
        start = self._clock()
        return call(), self._clock() - start

    def _tell(self, what: str) -> None:
        self._sink(Progress(f"serving {what}", self._seconds - self._left, self._seconds))

    def _verdict(self, tried: Sequence[Tried], ratio: Interval | None, pairs: int) -> str:
        if not tried:
            return "the defaults stay: nothing else could be measured in the time given"
        best = self._space.spelled(tried[0].settings)
        if ratio is None:
            return f"the defaults stay: {best} could not be confirmed"
        what = "rate" if not self._scores.rate else "speed"
        said = f"{ratio} of the defaults' {what}, {wording.count(pairs, 'fresh pair')}"
        if ratio.low > 1:
            return f"{best}: {said}"
        others = wording.count(len(tried), "other setting")
        return f"the defaults are best: of {others} the best, {best}, has {said}"


def search(
    bundle: str | Path,
    text: str,
    *,
    out: str | Path | None = None,
    rate: float = 0.0,
    seconds: float = 900.0,
    protocol: str = "grpc",
    model: str = "",
    processes: int = 1,
    data: Source | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: int = 0,
    options: Sequence[str] = (),
    force: bool = False,
    sink: Sink = silent,
) -> GoalResult:
    """Choose instances, batch, queue delay and threads for a goal, by measuring real servers.

    Each candidate is measured in turns with the defaults; the best is confirmed in fresh pairs of
    servers. That the defaults are best is an answer.

    Args:
        text: Such as ``p99<=20ms``: the highest rate that keeps it is sought.
        out: Where a copy of the bundle goes that holds the choice.
        rate: Requests a second at which the lowest percentile is sought instead.
        seconds: Time for all of it, about.
        protocol: ``http`` or ``grpc``.
        model: Which of several in the bundle.
        processes: Server processes, among which the CPUs are divided.
        options: More words for `ortune serve`.

    Raises:
        BadSettings: The goal cannot be read, or it is no bundle.
        OrtuneError: The defaults cannot be served, or the copy cannot be written.
    """
    path, goal = Path(bundle), slo.read(text)
    if not archive.is_bundle(path):
        raise BadSettings(
            f"{path.name} is a plain model, and a choice is written into a bundle",
            fix="give a file made by pack",
        )
    if out is not None:
        free(Path(out), force, path)
    words = (*options, *(("--processes", str(processes)) if processes > 1 else ()))
    with TemporaryDirectory(prefix="ortune-goal-") as folder:
        plain = Path(folder) / path.name
        write(path, plain, Serving())
        space = _space(plain, model, processes, goal.limit_ns / 1e3, words)
        servers = Servers(
            path, Path(folder), protocol, model, data, shapes, ranges, batch, tuple(words)
        )
        found = Search(servers, space, Scores(goal, rate), seconds, sink).run()
    result = replace(found, bundle=str(path), goal=str(goal))
    if out is None:
        return result
    if signature_of(path).exists():
        result = replace(result, notes=(*result.notes, UNSIGNED))
    return replace(result, out=str(with_serving(path, out, result.chosen, force=force)))


def _space(
    plain: Path, model: str, processes: int, limit_us: float, options: Sequence[str]
) -> Space:
    """Return what a bundle can be served with here; it is opened once for that.

    Args:
        plain: The bundle as if nobody had chosen anything for it yet.
    """
    with load(plain, custom_ops="--allow-custom-ops" in options) as engine:
        name = model.partition("/")[0]
        call = engine[name if name in engine.models else engine.models[0]]
        threads = engine.backend.threads or effective_cpus()
        joins = joining.free(call.signature)
    return Space(max(1, effective_cpus() // processes), threads, joins, limit_us)
