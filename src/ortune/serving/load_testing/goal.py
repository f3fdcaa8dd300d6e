"""Choose how a bundle is served for a limit on its latency, by measuring real servers.

The score of settings is the highest rate that keeps the limit, or the percentile at a rate that
is asked for. Settings are walked through from the defaults, each measured in turns with them; the
best is confirmed in fresh pairs of servers, and written into a copy of the bundle.
"""

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ortune.bundle.engine import archive, batching
from ortune.bundle.engine.archive import signature_of
from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.load import load_engine
from ortune.bundle.members import with_serving, write_serving
from ortune.core import wording
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.outputs import check_output_file
from ortune.core.result import TableResult
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Interval
from ortune.measurement.machine import noise
from ortune.serving.load_testing import descent
from ortune.serving.load_testing.clients import open_clients
from ortune.serving.load_testing.levels import Level, Load
from ortune.serving.load_testing.requests import LoadTest, PercentileLimit
from ortune.serving.load_testing.server import serve_models, serve_options

Measure: TypeAlias = Callable[[Load], Level]
"""Puts one level of load on a server, warm-up included."""
Start: TypeAlias = Callable[[Serving, str], AbstractContextManager[Measure]]
"""Serves settings until the block ends; the text tells servers of the same time apart."""

ROUGHLY, WELL = 4, 10
"""Answers beyond the percentile while settings are looked for, and when they are confirmed."""
FEWEST_PAIRS, PAIRS = 3, 16
"""Fresh pairs of servers that confirm: the fewest that say anything, and the most. The time
decides how many there are, never what they say."""
NOISY = "this machine is too noisy for a verdict on these times"
UNSIGNED = "the signature is of the file as it was: the copy has none (ortune pack --sign)"
_SEARCH_S = 600.0
_LEVEL_S = 2.0
"""Seconds of a level at least: a queue that grows, and a neighbour's bursts, take time to show."""
_CALLERS = 32
"""Of the closed loop that tells how much a server can do at all."""
_LONE_S, _FULL_S = 1.0, 2.0
_CAUTION = 0.7
"""Share of that rate at which the first search for a goal begins."""
_LEAST = 0.1
"""Share of one caller's rate below which no rate is asked about."""
_LOST_NS = 6e10
"""A request without an answer counts as so long."""
_START_S = 4.0
"""What starting a server takes, about."""
_PAIR_LEVELS = 6
"""Of a pair, about: the first turn has more, as nothing is known then."""
_LEVELS = 40
"""Of the shortest search: one turn of the defaults, one pair, and the fewest that confirm it."""


@dataclass
class Scores:
    """The score of servers for a goal, higher is better; it knows what to ask next.

    At a rate the percentile counts; at 0 the highest rate that keeps the goal. Answers `beyond`
    the percentile tell it. `client_limits`: in some level the client was busy nearly all the time.
    """

    goal: PercentileLimit
    rate: float = 0.0
    beyond: int = ROUGHLY
    client_limits: bool = False
    _bounds: tuple[float, float] = (1e-3, 1e6)
    _last: float = 1.0
    _turns: int = 0

    def spell_score(self, score: float) -> str:
        """Return a score in words."""
        if self.rate:
            tail = f"p{self.goal.percentile:g}"
            return f"{tail} of {1e3 / score:.4g} ms at {self.rate:g} requests/s"
        if score <= self._bounds[0]:
            return f"no rate with {self.goal}"
        return f"{score:.4g} requests/s with {self.goal}"

    def probe_rates(self, measure: Measure) -> None:
        """Find out what the defaults' server can do at all."""
        if self.rate:
            return
        lone = measure(Load(concurrency=1, seconds=_LONE_S))
        full = measure(Load(concurrency=_CALLERS, seconds=_FULL_S))
        least = max(_LEAST * lone.rate, 1e-3)
        self._bounds = least, 10 * max(full.rate, lone.rate, least)
        self._last = _CAUTION * full.rate

    def level_s(self, beyond: int) -> float:
        """Return the seconds of a level, about; `beyond`: answers beyond the percentile."""
        needed = descent.requests_needed(self.goal.percentile, beyond)
        return max(_LEVEL_S, needed / (self.rate or self._last))

    def take_turn(self, servers: Sequence[Measure]) -> list[float]:
        """Score servers one after the other, all by the same arrivals and from the same rate."""
        self._turns += 1
        if self.rate:
            return [1e9 / self._measure_percentile(server, self.rate) for server in servers]
        start, limit_ns = self._last, self.goal.limit_ns
        scores = [
            descent.find_sustained_rate(
                lambda rate, server=server: self._measure_percentile(server, rate),  # type: ignore[misc]
                limit_ns,
                start,
                *self._bounds,
            )
            for server in servers
        ]
        self._last = statistics.geometric_mean(scores)
        return scores

    def _measure_percentile(self, measure: Measure, rate: float) -> float:
        """Return the goal's percentile at a rate in ns; what was not answered took forever."""
        needed = descent.requests_needed(self.goal.percentile, self.beyond)
        load = Load(rate=rate, requests=max(needed, math.ceil(_LEVEL_S * rate)), seed=self._turns)
        level = measure(load)
        self.client_limits |= level.client_limits
        latency = [*level.latency_ns, *[_LOST_NS] * level.failure_count] or [_LOST_NS]
        return float(np.percentile(latency, self.goal.percentile))


@contextmanager
def start_server(
    settings: Serving, side: str, *, request: LoadTest, folder: Path
) -> Iterator[Measure]:
    """Serve a copy in `folder` with settings until the block ends; `side` tells servers apart.

    Raises OrtuneError: it does not get ready, or gives no answer.
    """
    bundle = Path(request.target)
    copy = folder / side / bundle.name  # a model is named like its file
    copy.parent.mkdir(exist_ok=True)
    write_serving(bundle, copy, settings)
    with (
        serve_models(copy, options=serve_options(request)) as server,
        open_clients(request, server.find_url(request.protocol)) as load_clients,
    ):
        yield load_clients.measure_level


@dataclass(frozen=True)
class TriedRow:
    """Settings, their score over the defaults', 0 where they were not served, and its pairs."""

    settings: str
    ratio: float
    pairs: int


@dataclass(frozen=True, repr=False)
class GoalResult(TableResult):
    """Settings that were chosen by measuring real servers, each beside the defaults.

    Attributes:
        before: The defaults' score in the first turn, in words: the highest rate that keeps the
            goal, or the percentile at the rate that was asked for.
        defaults: The settings without a choice, as a person reads them.
        better: They beat the defaults beyond noise; else they are the defaults.
        ratio: Of the best settings over the defaults, from fresh pairs of servers that nothing was
            chosen by, at 95 %; None where there were none.
        tried: In the search, the best first.
        out: The copy of the bundle that says so; empty where none was asked for.
    """

    bundle: str
    goal: str
    before: str
    defaults: str
    choice: str
    chosen: Serving
    better: bool
    ratio: Interval | None
    pairs: int
    tried: tuple[TriedRow, ...]
    verdict: str
    seconds: float
    notes: tuple[str, ...] = ()
    out: str = ""

    table = "tried"

    def summary(self) -> Mapping[str, object]:
        """Return the verdict and what it rests on."""
        return {
            "bundle": self.bundle,
            "goal": self.goal,
            "defaults": self.before,
            "verdict": self.verdict,
            "choice": self.choice,
            "ratio": self.ratio,
            "out": self.out,
        }


class Search:
    """One search within some seconds, some kept back to confirm; servers and clock are given."""

    def __init__(
        self,
        start: Start,
        space: descent.ServingSpace,
        scores: Scores,
        seconds: float,
        *,
        sink: Sink = ignore_event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._space, self._scores = start, space, scores
        self._sink, self._clock = sink, clock
        self._seconds, self._began = seconds, clock()
        self._pair_s = 0.0
        self._pairs = 0
        self._notes: list[str] = []

    def run_search(self) -> GoalResult:
        """Search, confirm, and say what came of it; bundle and goal are left to the caller.

        Raises BadSettings: the time is too short for this percentile of this model; OrtuneError:
        the defaults cannot be served.
        """
        space, scores, defaults = self._space, self._scores, Serving()
        with self._start(defaults, "defaults") as home:
            self._report_progress("serving the defaults")
            scores.probe_rates(home)
            level_s = scores.level_s(ROUGHLY)
            if self._seconds < _LEVELS * level_s:
                raise BadSettings(
                    f"p{scores.goal.percentile:g} needs {level_s:.0f} s for each rate here, and "
                    f"--time gives {self._seconds:.0f} s for all",
                    fix=f"give --time {math.ceil(_LEVELS * level_s / 60)}m, or a goal on a lower "
                    "percentile",
                )
            before = scores.take_turn([home])[0]
            self._pair_s = _PAIR_LEVELS * (scores.level_s(ROUGHLY) + 1) + _START_S
            dearer = scores.level_s(WELL) / scores.level_s(ROUGHLY)
            reserved = 1 + FEWEST_PAIRS * dearer  # in pairs: this one, and those that confirm

            def score(settings: Serving) -> float | None:
                if self._remaining_s < reserved * self._pair_s:
                    return None
                self._report_progress(f"serving {self._space.spell_settings(settings)}")
                try:
                    with self._start(settings, "candidate") as other:
                        began = self._clock()
                        ratio = self._measure_pair(home, other)
                        self._pair_s = (self._pair_s + self._clock() - began + _START_S) / 2
                except OrtuneError as error:
                    self._notes.append(f"{self._space.spell_settings(settings)}: {error.what}")
                    return 0.0
                return ratio

            tried = descent.descend_settings(space, defaults, score)
        fresh = self._confirm_settings(tried[0].settings) if tried else []
        ratio = descent.estimate_ratio(fresh)
        better = ratio is not None and ratio.low > 1
        chosen = tried[0].settings if better else defaults
        if scores.client_limits:
            self._notes.append(
                "the client was the limit in some levels: the settings may differ by more"
            )
        return GoalResult(
            bundle="",
            goal="",
            before=scores.spell_score(before),
            defaults=space.spell_settings(defaults),
            choice=space.spell_settings(chosen),
            chosen=chosen,
            better=better,
            ratio=ratio,
            pairs=len(fresh),
            tried=tuple(
                TriedRow(space.spell_settings(other.settings), other.ratio, len(other.ratios))
                for other in tried
            ),
            verdict=self._word_verdict(tried, ratio, len(fresh)),
            seconds=self._clock() - self._began,
            notes=tuple(self._notes),
        )

    @property
    def _remaining_s(self) -> float:
        return self._seconds - (self._clock() - self._began)

    def _confirm_settings(self, settings: Serving) -> list[float]:
        """Measure settings and defaults in pairs of new servers."""
        self._scores.beyond, ratios = WELL, list[float]()
        while len(ratios) < FEWEST_PAIRS or (
            len(ratios) < PAIRS and self._remaining_s >= self._pair_s
        ):
            self._report_progress(f"confirming {self._space.spell_settings(settings)}")
            try:
                with (
                    self._start(Serving(), "defaults") as home,
                    self._start(settings, "candidate") as other,
                ):
                    began = self._clock()
                    ratios.append(self._measure_pair(home, other))
                    self._pair_s = self._clock() - began + _START_S
            except OrtuneError as error:
                self._notes.append(f"a pair that was to confirm failed: {error.what}")
                return []
        return ratios

    def _measure_pair(self, home: Measure, other: Measure) -> float:
        """Measure both in turn; which goes first changes from pair to pair."""
        self._pairs += 1
        if self._pairs % 2:
            before, after = self._scores.take_turn([home, other])
        else:
            after, before = self._scores.take_turn([other, home])
        return after / before

    def _report_progress(self, work: str) -> None:
        self._sink(Progress(work, self._seconds - self._remaining_s, self._seconds))

    def _word_verdict(
        self, tried: Sequence[descent.TriedSettings], ratio: Interval | None, pairs: int
    ) -> str:
        if not tried:
            return "the defaults stay: nothing else could be measured in the time given"
        best = self._space.spell_settings(tried[0].settings)
        if ratio is None:
            return f"the defaults stay: {best} could not be confirmed"
        score = "rate" if not self._scores.rate else "speed"
        gain = f"{ratio} of the defaults' {score}, {wording.format_count(pairs, 'fresh pair')}"
        if ratio.low > 1:
            return f"{best}: {gain}"
        tried_count = wording.format_count(len(tried), "other setting")
        if ratio.high <= descent.MARGIN:
            return f"the defaults are best: of {tried_count} the best, {best}, has {gain}"
        return f"the defaults stay: of {tried_count} none is known to be better; {best} has {gain}"


def search_settings(request: LoadTest) -> GoalResult:
    """Choose instances, batch, queue delay and threads for a goal, by measuring real servers.

    Sought is the highest rate that keeps the goal, or, where a rate is given, the lowest
    percentile at it. That the defaults are best is an answer. Raises BadSettings: it is no bundle,
    there are several rates, or the time is too short; OrtuneError: the defaults cannot be served,
    or the copy cannot be written.
    """
    path, goal = Path(request.target), PercentileLimit.parse(request.goal)
    if not archive.is_bundle(path):
        raise BadSettings(
            f"{path.name} is a plain model, and --goal writes its settings into a bundle",
            fix="give a file made by pack",
        )
    if len(request.rate) > 1:
        raise BadSettings("--goal takes one rate", fix="give one --rate, or none")
    assert request.out is not None  # the request demands it of a goal
    check_output_file(request.out, request.force, path)
    with open_temporary_folder() as folder:
        plain = Path(folder) / path.name
        start = partial(start_server, request=request, folder=Path(folder))
        write_serving(path, plain, Serving())
        # What a bundle can be served with here; it is opened once for that.
        limit_us = goal.limit_ns / 1e3
        code = "--allow-custom-ops" in shlex.split(request.serve)
        with load_engine(plain, on=request.on or None, custom_ops=code) as engine:
            name = request.model.partition("/")[0]
            call = engine[name if name in engine.models else engine.models[0]]
            threads = engine.backend.threads or effective_cpus()
            joins = batching.has_free_batch(call.signature)
        space = descent.ServingSpace(
            max(1, effective_cpus() // request.processes), threads, joins, limit_us
        )
        scores = Scores(goal, request.rate[0] if request.rate else 0.0)
        before = noise.take_snapshot()
        seconds = request.time or _SEARCH_S
        result = Search(start, space, scores, seconds, sink=request.sink).run_search()
        judged = noise.judge_noise(noise.compare_snapshots(before, noise.take_snapshot()))
    notes = [*result.notes]
    if judged.too_noisy and not result.better:
        notes += [NOISY, *map(str, judged.advice)]
    if signature_of(path).exists():
        notes.append(UNSIGNED)
    out = with_serving(path, request.out, result.chosen, force=request.force)
    return replace(result, bundle=str(path), goal=str(goal), notes=tuple(notes), out=str(out))
