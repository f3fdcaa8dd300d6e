"""Calls that come at their own pace, whether or not the last one is answered."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.core.plugins.bounds import THREADS, Bounds
from ortune.core.workload import Driven, Lane, Rig, Span, Workload
from ortune.measurement.arrivals import lanes as lane_threads

_PATIENCE = 4  # calls are given up after this many times the seconds that their arrivals take


@dataclass(frozen=True)
class Arrivals(Workload):
    """An open loop: calls arrive at a rate and queue up when all sessions are busy.

    An entry is the time from a call's *intended* arrival to its answer, so waiting in the queue
    counts (no "coordinated omission": Gil Tene, "How NOT to measure latency", 2015). A burst is
    one stretch of arrivals; both sides of a pair get the same schedule.

    Attributes:
        rate: Calls a second.
        sessions: Sessions that take calls from one queue.
        pattern: ``poisson``: independent callers; ``constant``: a clock.
        seconds: How long the arrivals of one burst take; 0: 1 s, less in a search under a minute.
        seed: Of the schedule.
    """

    measure: ClassVar[str] = "latency from the intended arrival"
    scheduled: ClassVar[bool] = True

    rate: Annotated[float, Bounds(high=1e6)] = 10.0
    sessions: Annotated[int, THREADS] = 1
    pattern: Literal["poisson", "constant"] = "poisson"
    seconds: Annotated[float, Bounds(high=600)] = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(0 < self.rate < math.inf, "rate", "calls a second, more than 0")
        self.demand(self.sessions > 0, "sessions", "1 or more")
        self.demand(0 <= self.seconds < math.inf, "seconds", "0 or more")
        self.demand(self.seed >= 0, "seed", "0 or more")

    def within(self, seconds: float) -> Self:
        """Shorten the bursts of a short search, unless their length was given."""
        return replace(self, seconds=lane_threads.fit_burst(self.seconds, seconds))

    def lanes(self, threads: int) -> int:
        return self.sessions

    def splits(self, cpus: int) -> tuple[int, ...]:
        """Return the threads that give every session its share of the CPUs, and all of them."""
        return (max(1, cpus // self.sessions), 0) if self.sessions > 1 else ()

    def schedule_arrivals(self, at: int) -> list[int]:
        """Return the intended arrivals of a burst, nanoseconds from its start."""
        count = max(2, round(self.rate * lane_threads.burst_seconds(self.seconds)))
        poisson = self.pattern == "poisson"
        times = lane_threads.arrival_times(self.rate, count, (self.seed, at), poisson=poisson)
        return [int(moment) for moment in times]

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Serve one schedule; the span says where in the cycle its samples begin."""
        due = self.schedule_arrivals(span.at)
        patience = int(_PATIENCE * max(lane_threads.burst_seconds(self.seconds) * 1e9, due[-1]))
        tickets = itertools.count()  # one queue of calls, in order of arrival, for all lanes
        waiting = lane_threads.RunQueueMeter(rig.lanes[0])
        dropped = sum(lane_threads.settle_lane(lane, span) for lane in rig.lanes)
        # Each lane counts from its own zero, taken here: a scripted clock is a session's own.
        zeros = {id(lane): lane.clock() for lane in rig.lanes}

        def serve_calls(lane: Lane) -> list[tuple[int, int, int]]:
            """Take calls until none is left: (call, start, end) of each, ns from the zero."""
            zero, served = zeros[id(lane)], []
            while (call := next(tickets)) < len(due):
                lane.until(zero + due[call])
                start = lane.clock() - zero
                if start > patience:
                    break
                lane_threads.run_rounds(lane, span.at + call)
                served.append((call, start, lane.clock() - zero))
            return served

        served = itertools.chain(*lane_threads.run_lanes(rig.lanes, serve_calls, waiting))
        end = {call: (start, done) for call, start, done in served}
        latency = [
            end[call][1] - moment if call in end else max(1, patience - moment)
            for call, moment in enumerate(due)
        ]
        details = {
            "offered": [len(due), due[-1]],
            "served": [len(end), max((done for _, done in end.values()), default=1)],
            "busy_ns": sum(done - start for start, done in end.values()),
            "queued_ns": [start - due[call] for call, (start, _) in sorted(end.items())],
            "sessions": len(rig.lanes),
        }
        share = waiting.share()
        return Driven(latency, [share] * len(latency), len(end) + dropped, details)

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return rates, how busy the sessions were, and whether they keep up.

        ``load`` is rate x mean time of a run / sessions; from 1 on a queue grows without end
        (the stability condition of an M/G/c queue).
        """
        if not details:
            return {}
        offered, served = _compute_rate(details, "offered"), _compute_rate(details, "served")
        count = sum(detail["served"][0] for detail in details)
        given_up = sum(detail["offered"][0] for detail in details) - count
        load = self.rate * sum(detail["busy_ns"] for detail in details) / 1e9
        load /= max(1, count) * details[0]["sessions"]
        keeps_up = load < 1 and not given_up
        notes = []
        if not keeps_up:
            reached = f"{served:,.0f}" if served >= 100 else f"{served:.3g}"
            notes.append(
                f"cannot keep up with {self.rate:,g} calls a second: {reached} a second were "
                f"answered, the work is {100 * load:.0f} % of what the sessions can do, "
                "and latency grows with the length of the run"
            )
        return {
            "offered_rate": offered,
            "achieved_rate": served,
            "load": load,
            "keeps_up": keeps_up,
            "given_up": given_up,
            "sessions": details[0]["sessions"],
            **lane_threads.summarize_tails(
                [ns for detail in details for ns in detail["queued_ns"]], "queued"
            ),
            "notes": notes,
        }


def _compute_rate(details: Sequence[Mapping[str, Any]], name: str) -> float:
    count = sum(int(detail[name][0]) for detail in details)
    return 1e9 * count / max(1, sum(int(detail[name][1]) for detail in details))
