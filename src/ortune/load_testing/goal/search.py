"""Search settings for a goal on real servers, confirm the best, and write it into a bundle."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
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
from ortune.engine import archive, joining
from ortune.engine.instances import Serving
from ortune.engine.load import load
from ortune.engine.signing import signature_of
from ortune.load_testing import slo
from ortune.load_testing.goal.descent import MARGIN, Tried, confirmed, descend
from ortune.load_testing.goal.result import GoalResult, TriedRow
from ortune.load_testing.goal.servers import ROUGHLY, WELL, Measures, Scores, Servers
from ortune.load_testing.goal.space import ServingSpace
from ortune.load_testing.requests import LoadTest
from ortune.measurement.machine import noise

FEWEST_PAIRS, PAIRS = 3, 16
"""Fresh pairs of servers that confirm: the fewest that say anything, and the most. The time
decides how many there are, never what they say."""
_START_S = 4.0
"""What starting a server takes, about."""
_PAIR_LEVELS = 6
"""Of a pair, about: the first turn has more, as nothing is known then."""
_LEVELS = 40
"""Of the shortest search: one turn of the defaults, one pair, and the fewest that confirm it."""
NOISY = "this machine is too noisy for a verdict on these times"
UNSIGNED = "the signature is of the file as it was: the copy has none (ortune pack --sign)"


class _Starts(Protocol):
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
        servers: _Starts,
        space: ServingSpace,
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
            BadSettings: The time is too short for this percentile of this model.
            OrtuneError: The defaults cannot be served.
        """
        defaults = Serving()
        with self._servers.started(defaults, "defaults") as home:
            self._tell("serving the defaults")
            self._scores.begin(home)
            self._demand_time()
            before = self._scores.turn([home])[0]
            self._pair_s = _PAIR_LEVELS * (self._scores.level_s(ROUGHLY) + 1) + _START_S
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

    def _demand_time(self) -> None:
        """Refuse a search that could only begin.

        Raises:
            BadSettings: The time is too short for this percentile of this model.
        """
        level_s = self._scores.level_s(ROUGHLY)
        needed = _LEVELS * level_s
        if self._seconds < needed:
            tail = self._scores.goal.percentile
            raise BadSettings(
                f"p{tail:g} takes {level_s:.0f} s for each rate that is asked about "
                f"here, and {self._seconds:.0f} s are given for all of it",
                fix=f"give --time {math.ceil(needed / 60)}m, or a goal on a lower percentile",
            )

    @property
    def _left(self) -> float:
        return self._seconds - (self._clock() - self._began)

    def _tried(self, home: Measures, defaults: Serving) -> list[Tried]:
        """Walk through the settings while there is time for that and for what confirms."""
        steps = descend(self._space, defaults)
        dearer = self._scores.level_s(WELL) / self._scores.level_s(ROUGHLY)
        try:
            one = next(steps)
            while True:
                enough = self._left >= (1 + FEWEST_PAIRS * dearer) * self._pair_s
                one = steps.send(self._pair(home, one) if enough else None)
        except StopIteration as done:
            tried: list[Tried] = done.value
            return tried

    def _pair(self, home: Measures, how: Serving) -> float:
        """Return the score of settings over the defaults', 0 where they cannot be served."""
        self._tell(f"serving {self._space.spelled(how)}")
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
        self._sink(Progress(what, self._seconds - self._left, self._seconds))

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
        if ratio.high <= MARGIN:
            return f"the defaults are best: of {others} the best, {best}, has {said}"
        return f"the defaults stay: of {others} none is known to be better; {best} has {said}"


def search(asked: LoadTest) -> GoalResult:
    """Choose instances, batch, queue delay and threads for a goal, by measuring real servers.

    Sought is the highest rate that keeps the goal, or, where a rate is given, the lowest
    percentile at it. Each candidate is measured in turns with the defaults; the best is confirmed
    in fresh pairs of servers. That the defaults are best is an answer.

    Raises:
        BadSettings: It is no bundle, there are several rates, or the time is too short.
        OrtuneError: The defaults cannot be served, or the copy cannot be written.
    """
    path, goal = Path(asked.target), slo.read(asked.goal)
    if not archive.is_bundle(path):
        raise BadSettings(
            f"{path.name} is a plain model, and a choice is written into a bundle",
            fix="give a file made by pack",
        )
    if len(asked.rate) > 1:
        raise BadSettings("a goal is sought at one rate", fix="give one --rate, or none")
    if asked.out is not None:
        free(asked.out, asked.force, path)
    with TemporaryDirectory(prefix="ortune-goal-") as folder:
        plain, servers = Path(folder) / path.name, Servers(asked, Path(folder))
        write(path, plain, Serving())
        space = _space(asked, plain, goal.limit_ns / 1e3)
        scores = Scores(goal, asked.rate[0] if asked.rate else 0.0)
        before = noise.snapshot()
        found = Search(servers, space, scores, asked.time, asked.sink).run()
        judged = noise.judge(noise.between(before, noise.snapshot()))
    notes = (
        *found.notes,
        *([NOISY, *judged.advice] if judged.too_noisy and not found.better else ()),
    )
    result = replace(found, bundle=str(path), goal=str(goal), notes=notes)
    if asked.out is None:
        return result
    if signature_of(path).exists():
        result = replace(result, notes=(*result.notes, UNSIGNED))
    made = with_serving(path, asked.out, result.chosen, force=asked.force)
    return replace(result, out=str(made))


def _space(asked: LoadTest, plain: Path, limit_us: float) -> ServingSpace:
    """Return what a bundle can be served with here; it is opened once for that.

    Args:
        plain: The bundle as if nobody had chosen anything for it yet.
    """
    code = "--allow-custom-ops" in shlex.split(asked.serve)
    with load(plain, on=asked.on or None, custom_ops=code) as engine:
        name = asked.model.partition("/")[0]
        call = engine[name if name in engine.models else engine.models[0]]
        threads = engine.backend.threads or effective_cpus()
        joins = joining.free(call.signature)
    return ServingSpace(max(1, effective_cpus() // asked.processes), threads, joins, limit_us)
