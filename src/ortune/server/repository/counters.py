"""What became of the requests to one model: Triton's counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ortune.engine.batching import Batches
from ortune.engine.call import Call
from ortune.engine.queue.waiting import Answered
from ortune.protocol import metadata
from ortune.protocol.status import Status

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why requests fail, in Triton's words: not let in or out of time, given up by the client, failed
while they were computed, and wrong."""
_REASON = {
    Status.UNAVAILABLE: "REJECTED",
    Status.TIMED_OUT: "REJECTED",
    Status.CANCELLED: "CANCELED",
    Status.INTERNAL: "BACKEND",
}
Durations: TypeAlias = Mapping[str, tuple[int, int]]
"""Name -> count and nanoseconds."""


@dataclass(eq=False, slots=True)
class Counters:
    """Counts of one version of one model; they go on when its file is exchanged.

    Only the event loop's thread writes them.

    Attributes:
        answered: Requests that got their answer.
        answered_ns: From their arrival to their answer, all together.
        inferences: Rows of these requests.
        queue_ns: What these requests waited.
        infer_ns: What they were computed, each by the time of its whole run.
        output_ns: From the end of the run to the answer.
        failed: Reason -> requests without an answer.
        failed_ns: From their arrival to their refusal, all together.
        last_ms: When the last one was answered, milliseconds since the epoch.
    """

    answered: int = 0
    answered_ns: int = 0
    inferences: int = 0
    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    failed_ns: int = 0
    last_ms: int = 0
    _calls: list[Call] = field(default_factory=list)
    _past: dict[int, Batches] = field(default_factory=dict)

    def count(self, rows: int, began: int, found: Answered, now: int) -> None:
        """Count an answer.

        Args:
            rows: Of the request.
            began: When it arrived, nanoseconds of `time.perf_counter_ns`.
            found: What the engine says of it.
            now: When its answer was ready.
        """
        self.answered += 1
        self.answered_ns += now - began
        self.inferences += rows
        self.queue_ns += found.started_ns - found.queued_ns
        self.infer_ns += found.ended_ns - found.started_ns
        self.output_ns += now - found.ended_ns
        self.last_ms = time.time_ns() // 1_000_000

    def refuse(self, status: Status, ns: int, *, computed: bool = False) -> None:
        """Count a request without an answer.

        Args:
            ns: From its arrival.
            computed: The model failed, whatever the client is told.
        """
        self.failed["BACKEND" if computed else _REASON.get(status, "OTHER")] += 1
        self.failed_ns += ns

    def follow(self, call: Call) -> None:
        """Count the runs of a model too."""
        self._calls.append(call)

    def leave(self, call: Call) -> None:
        """Keep the runs of a model that runs no more."""
        self._calls.remove(call)
        self._past = _together([self._past, call.statistics.batches])

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return sum(call.statistics.depth for call in self._calls)

    @property
    def runs(self) -> Mapping[int, Batches]:
        """Rows -> runs of so many, those that failed too."""
        return _together([self._past, *(call.statistics.batches for call in self._calls)])

    def durations(self) -> Durations:
        """Return counts and times by Triton's names."""
        count = self.answered
        return {
            "success": (count, self.answered_ns),
            "fail": (self.failed.total(), self.failed_ns),
            "queue": (count, self.queue_ns),
            "compute_input": (count, 0),
            "compute_infer": (count, self.infer_ns),
            "compute_output": (count, self.output_ns),
        }

    def told(self, name: str, version: str) -> dict[str, Any]:
        """Return the entry of ``model_stats``."""
        runs = self.runs
        return metadata.statistics(
            name,
            version,
            last_inference_ms=self.last_ms,
            inferences=self.inferences,
            executions=sum(one.count for one in runs.values()),
            durations=self.durations(),
            batches={
                rows: {
                    "compute_input": (one.count, 0),
                    "compute_infer": (one.count, one.compute_ns),
                    "compute_output": (one.count, 0),
                }
                for rows, one in sorted(runs.items())
            },
        )


def _together(parts: Sequence[Mapping[int, Batches]]) -> dict[int, Batches]:
    """Add up runs of the same size."""
    found: dict[int, Batches] = {}
    for part in parts:
        for rows, one in part.items():
            held = found.get(rows, Batches())
            found[rows] = Batches(
                held.count + one.count,
                held.requests + one.requests,
                held.queue_ns + one.queue_ns,
                held.compute_ns + one.compute_ns,
            )
    return found
