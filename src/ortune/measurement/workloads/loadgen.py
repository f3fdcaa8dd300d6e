"""The MLPerf scenarios, driven by MLCommons' own load generator."""

import importlib.util
import json
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.core.errors import OrtuneError
from ortune.core.plugins.bounds import THREADS, Bounds
from ortune.core.workload import Driven, Lane, Rig, Span, Workload
from ortune.measurement.arrivals import lanes as lane_threads
from ortune.measurement.arrivals.lanes import burst_seconds, fit_burst

_FIGURES = {
    "single-stream": "result_mean_latency_ns",
    "multi-stream": "result_mean_query_latency_ns",
    "server": "result_mean_latency_ns",
    "offline": "result_samples_per_second",
}
"""What an entry is made of, in the load generator's own words."""

_TRIES = 3
_MARK = ":::MLLOG "
_KEPT = ("result_", "early_stopping")


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
        return replace(self, seconds=fit_burst(self.seconds, seconds))

    def missing(self) -> str | None:
        if importlib.util.find_spec("mlperf_loadgen") is None:
            return "pip install mlcommons-loadgen"
        return None

    def lanes(self, threads: int) -> int:
        return self.sessions

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Let LoadGen run its scenario once and read the result from its log."""
        import mlperf_loadgen as lg

        settling = replace(span, drop=max(1, span.drop))
        dropped = sum(lane_threads.settle_lane(lane, settling) for lane in rig.lanes)
        expected = self.qps
        if not expected:  # runs a second of one lane at its quickest, times the lanes: too many
            lane, times = rig.lanes[0], []
            for k in range(_TRIES):
                start = lane.clock()
                lane_threads.run_rounds(lane, span.at + k)
                times.append(lane.clock() - start)
            expected = 1e9 * len(rig.lanes) / max(1, min(times))
        waiting = lane_threads.RunQueueMeter(rig.lanes[0])
        settings = lg.TestSettings()
        settings.scenario = getattr(lg.TestScenario, self.scenario.title().replace("-", ""))
        settings.mode = lg.TestMode.PerformanceOnly
        settings.min_duration_ms = max(1, int(1000 * burst_seconds(self.seconds)))
        settings.max_duration_ms = 4 * settings.min_duration_ms
        settings.min_query_count = 1
        settings.server_target_qps = settings.offline_expected_qps = expected
        settings.server_target_latency_ns = int(1e6 * self.target_ms)
        root = rig.out / "loadgen"
        root.mkdir(parents=True, exist_ok=True)
        out = root / f"{sum(1 for _ in root.iterdir()):04}"
        out.mkdir()
        counter = _Counter(rig, lg)
        samples = len(rig.shapes)
        output = lg.LogOutputSettings()
        output.outdir = str(out)
        output.copy_summary_to_stdout = False
        logs = lg.LogSettings()
        logs.log_output = output
        logs.enable_trace = False
        sut = lg.ConstructSUT(counter.put_query, lambda: None)
        library = lg.ConstructQSL(samples, samples, lambda indices: None, lambda indices: None)
        try:
            with counter:
                # No file of this name: settings come from nowhere else.
                audit = str(out / "audit.config")
                lg.StartTestWithLogSettings(sut, library, settings, logs, audit)
        finally:
            lg.DestroyQSL(library)
            lg.DestroySUT(sut)
        figures = {**read_results(out / "mlperf_log_detail.txt"), "runs": counter.runs}
        share = waiting.share()
        figure = float(figures[_FIGURES[self.scenario]])
        entry = 1e9 / figure if self.scenario == "offline" else figure
        count = max(1, span.runs)
        runs = figures.pop("runs") + dropped + (0 if self.qps else _TRIES)
        return Driven([max(1, round(entry))] * count, [share] * count, runs, figures)

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return LoadGen's own results of the last burst, and how many bursts it calls valid."""
        if not details:
            return {}
        valid = sum(detail["result_validity"] == "VALID" for detail in details)
        reasons = {str(detail.get("result_invalid_reason", "")).strip() for detail in details} - {
            ""
        }
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


def read_results(log: Path) -> dict[str, Any]:
    """Read the results of a detail log. Raises OrtuneError: there are none."""
    results: dict[str, Any] = {}
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    for line in text.splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line[len(_MARK) :])
            if entry["key"].startswith(_KEPT):
                results[entry["key"]] = entry["value"]
    if "result_validity" not in results:
        raise OrtuneError(f"LoadGen wrote no result to {log}", fix="read the log beside it")
    return results


class _Counter:
    """Threads that take samples from the load generator's queue, one a lane."""

    def __init__(self, rig: Rig, lg: Any) -> None:
        self._lg = lg
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve_lane, args=(x,)) for x in rig.lanes]
        self._errors: list[BaseException] = []
        self.runs = 0

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def put_query(self, samples: Sequence[Any]) -> None:
        """Take a query; the load generator's objects do not outlive this call."""
        self.runs += len(samples)
        for sample in samples:
            self._queue.put((sample.id, sample.index))

    def _serve_lane(self, lane: Lane) -> None:
        while (query := self._queue.get()) is not None:
            key, index = query
            try:
                if not self._errors:
                    lane_threads.run_rounds(lane, index)
            except BaseException as error:
                self._errors.append(error)
            # A query without an answer would be waited for without end.
            self._lg.QuerySamplesComplete([self._lg.QuerySampleResponse(key, 0, 0)])
