"""One run after another: how long a caller waits for each."""

from dataclasses import dataclass

from ortune.core.workload import Driven, Rig, Span, Workload
from ortune.measurement.arrivals import lanes

_CHUNK_NS = 2_000_000
"""Run-queue counters are read around chunks this long: reading them costs microseconds."""


@dataclass(frozen=True)
class Latency(Workload):
    """One run after another, nothing beside it: an entry is the time of a run."""

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Time every entry; run-queue waiting is read for chunks of entries of at least 2 ms."""
        lane = rig.lanes[0]
        dropped = lanes.settle_lane(lane, span)
        clock, waiting = lane.clock, lane.waited
        latency: list[int] = []
        waited: list[float] = []
        chunk_start, chunk_wait = clock(), waiting()
        for index in range(span.runs):
            first = span.at + index * span.each
            calls = [c for k in range(span.each) for c in lane.calls(first + k)]
            start = clock()
            for session, feeds in calls:
                session.run(feeds)
            end = clock()
            latency.append((end - start) // span.each)
            if end - chunk_start >= _CHUNK_NS or index == span.runs - 1:
                now = waiting()
                share = (now - chunk_wait) / max(1, end - chunk_start) if chunk_wait >= 0 else -1.0
                waited += [round(share, 4)] * (len(latency) - len(waited))
                chunk_start, chunk_wait = clock(), now
        return Driven(latency, waited, dropped + span.total)
