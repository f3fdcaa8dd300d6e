"""The MLPerf scenarios, driven by MLCommons' own load generator."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.core.plugins.bounds import THREADS, Bounds
from ortune.core.workload import Driven, Rig, Span, Workload
from ortune.load_generation import bursts, mlperf
from ortune.load_generation import lanes as lane_threads

_FIGURES = {
    "single-stream": "result_mean_latency_ns",
    "multi-stream": "result_mean_query_latency_ns",
    "server": "result_mean_latency_ns",
    "offline": "result_samples_per_second",
}
"""What an entry is made of, in the load generator's own words."""

_TRIES = 3


@dataclass(frozen=True)
class Loadgen(Workload):
    """A scenario of MLPerf inference: LoadGen issues the queries and judges the run.

    ``single-stream``: the next query when the last is answered; ``multi-stream``: eight samples a
    query; ``server``: Poisson arrivals at `qps`; ``offline``: all samples at once. An entry is
    the mean latency of a query, of offline the time per sample (mlcommons/inference, loadgen).
    All entries of a burst are equal; its logs stay in the worker's folder.

    Attributes:
        scenario: single-stream, multi-stream, server or offline.
        qps: Queries a second: needed by server; offline sizes its query by it, 0 measures that.
        sessions: Sessions that answer side by side.
        seconds: Shortest duration of a burst; 0: 1 s, less in a search under a minute.
        target_ms: Latency that 99 % of the server's queries must keep.
    """

    measure: ClassVar[str] = "latency of a LoadGen query"
    whole: ClassVar[bool] = True

    scenario: Literal["single-stream", "multi-stream", "server", "offline"] = "single-stream"
    qps: Annotated[float, Bounds(high=1e6)] = 0.0
    sessions: Annotated[int, THREADS] = 1
    seconds: Annotated[float, Bounds(high=600)] = 0.0
    target_ms: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        server = self.scenario == "server"
        enough = 0 < self.qps < math.inf if server else 0 <= self.qps < math.inf
        self.demand(enough, "qps", "queries a second; server needs more than 0")
        self.demand(self.sessions > 0, "sessions", "1 or more")
        self.demand(0 <= self.seconds < math.inf, "seconds", "0 or more")
        self.demand(0 < self.target_ms < math.inf, "target_ms", "more than 0")

    def within(self, seconds: float) -> Self:
        """Shorten the bursts of a short search, unless their length was given."""
        return replace(self, seconds=bursts.fitting(self.seconds, seconds))

    def missing(self) -> str | None:
        if importlib.util.find_spec("mlperf_loadgen") is None:
            return 'pip install "ortune[loadgen]", or mlcommons-loadgen'
        return None

    def lanes(self, threads: int) -> int:
        return self.sessions

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Let LoadGen run its scenario once and read the result from its log."""
        settling = replace(span, drop=max(1, span.drop))
        dropped = sum(lane_threads.settle(lane, settling) for lane in rig.lanes)
        expected = self.qps or self._measured(rig, span)
        waiting = lane_threads.Waiting(rig.lanes[0])
        found = mlperf.test(
            rig, self.scenario, expected, bursts.length(self.seconds), self.target_ms
        )
        share = waiting.share()
        figure = float(found[_FIGURES[self.scenario]])
        entry = 1e9 / figure if self.scenario == "offline" else figure
        count = max(1, span.runs)
        runs = found.pop("runs") + dropped + (0 if self.qps else _TRIES)
        return Driven([max(1, round(entry))] * count, [share] * count, runs, found)

    def _measured(self, rig: Rig, span: Span) -> float:
        """Return runs a second of one lane at its quickest, times the lanes: rather too many."""
        lane = rig.lanes[0]
        taken = []
        for k in range(_TRIES):
            start = lane.clock()
            lane_threads.run(lane, span.at + k)
            taken.append(lane.clock() - start)
        return 1e9 * len(rig.lanes) / max(1, min(taken))

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return LoadGen's own results of the last burst, and how many bursts it calls valid."""
        if not details:
            return {}
        valid = sum(one["result_validity"] == "VALID" for one in details)
        reasons = {str(one.get("result_invalid_reason", "")).strip() for one in details} - {""}
        stopping = str(details[-1].get("early_stopping_result", "")).strip()
        notes = [*sorted(reasons), *([stopping] if stopping else [])]
        mean = sum(latency_ns) / max(1, len(latency_ns))
        rate = {"throughput_per_s": 1e9 / mean * max(1, self.batch)} if mean else {}
        return {
            **(rate if self.scenario == "offline" else {}),
            "scenario": self.scenario,
            "valid_bursts": valid,
            "bursts": len(details),
            "loadgen": dict(details[-1]),
            "notes": notes if valid < len(details) else [],
        }
