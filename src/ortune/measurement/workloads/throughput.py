"""Sessions side by side, each always busy: how many inferences a second come out."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins.bounds import THREADS
from ortune.core.workload import Driven, Lane, Rig, Span, Workload
from ortune.measurement.arrivals import lanes as lane_threads
from ortune.measurement.arrivals.lanes import summarize_tails


@dataclass(frozen=True)
class Throughput(Workload):
    """Sessions side by side in one process, each always busy: an entry is time per run of all.

    A lane's rate is its counted runs over the time it took for them; the rates add up, and an
    entry is one over their sum. Lanes that are through first go on until all are, so that every
    counted run had the same company. All entries of a burst are equal.

    Attributes:
        sessions: Sessions side by side; 0 takes as many as fit: CPUs over threads of the backend.
    """

    measure: ClassVar[str] = "time per inference"
    whole: ClassVar[bool] = True

    sessions: Annotated[int, THREADS] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(self.sessions >= 0, "sessions", "0 or more; 0 is as many as fit")

    def lanes(self, threads: int) -> int:
        cpus = effective_cpus()
        return self.sessions or max(1, cpus // (threads or cpus))

    def splits(self, cpus: int) -> tuple[int, ...]:
        """Return one thread a session first, then two, four and so on, and 0: all CPUs."""
        return (*(2**k for k in range(cpus.bit_length()) if 2**k < cpus), 0)

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Deal the span's runs out to the lanes and let them go at once."""
        lanes = rig.lanes
        total = max(span.total, len(lanes))
        start = threading.Barrier(len(lanes))
        through, company, dropped = list[Lane](), list[Lane](), list[int]()

        def run_lane(lane: Lane) -> list[int]:
            """Return the nanoseconds of each run of a lane's share."""
            try:
                dropped.append(lane_threads.settle_lane(lane, span))
                start.wait()
                times: list[int] = []
                last = lane.clock()
                for turn in range(lanes.index(lane), total, len(lanes)):
                    lane_threads.run_rounds(lane, span.at + turn)
                    now = lane.clock()
                    times.append(now - last)
                    last = now
                through.append(lane)
                while len(through) < len(lanes) and not start.broken:  # until all are through
                    lane_threads.run_rounds(lane, span.at)
                    company.append(lane)
            except BaseException:
                start.abort()
                raise
            return times

        waiting = lane_threads.RunQueueMeter(lanes[0])
        times = lane_threads.run_lanes(lanes, run_lane, waiting)
        rates = [len(ns) / max(1, sum(ns)) for ns in times]
        entry = max(1, round(1 / sum(rates)))
        details = {
            "sessions": len(lanes),
            "runs_ns": [ns for lane_times in times for ns in lane_times],
        }
        runs, share = total + sum(dropped) + len(company), waiting.share()
        return Driven([entry] * span.runs, [share] * span.runs, runs, details)

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return inferences a second, the sessions, and how long a run took among the others."""
        runs = [ns for detail in details for ns in detail["runs_ns"]]
        mean = sum(latency_ns) / max(1, len(latency_ns))
        return {
            "throughput_per_s": 1e9 / mean * max(1, self.batch) if mean else None,
            "sessions": details[0]["sessions"] if details else None,
            **summarize_tails(runs, "run"),
        }
