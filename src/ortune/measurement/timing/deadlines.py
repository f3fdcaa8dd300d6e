"""How long a plan's requests may take: a few times what the original's took, then it hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ortune.core.backend import Kind
from ortune.core.workload import Workload
from ortune.measurement.timing.turns import StartupTimes
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput

_LOAD_S, _RUN_S, _BURST_S, _SCORE_S = 8.0, 2.0, 4.0, 6.0
"""What is always granted: a slow start of a process is no hang."""
_DEVICE_RUN_S = 30.0
"""What a first run on a GPU or NPU is granted: it loads kernels and plans convolutions."""
_TIMES = 10
"""Times the original's own that a load and a run may take."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds by the request, from the original's; a request that is not named has the worker's.

    Attributes:
        seconds: Request -> seconds.
        run_ns: A run of the original.
        judged_s: Running and scoring the original on all samples.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    run_ns: int = 0
    judged_s: float = 0.0

    @classmethod
    def from_baseline(
        cls,
        started: StartupTimes,
        ready_s: float,
        run_ns: int,
        judged_s: float,
        workload: Workload,
    ) -> Deadlines:
        """Return what plans get.

        Args:
            started: The original's start; `ready_s` is the whole of it, its process included.
            judged_s: What it took to run and to score it.
        """
        load_s = max(_LOAD_S, 2 * ready_s, _TIMES * started.load_ns / 1e9)
        lanes = workload.lanes(1)
        run_s = max(_RUN_S, _TIMES * started.first_ns / 1e9)
        seconds = {"load": load_s, "first": run_s + (lanes - 1) * load_s}
        if isinstance(workload, Latency | Throughput):  # others decide how long a burst takes
            seconds["burst"] = max(_BURST_S, lanes * 4 * _TIMES * run_ns / 1e9)
        return cls(seconds, run_ns, judged_s)

    def list_seconds(self, kind: Kind) -> Mapping[str, float]:
        """Return the seconds by request of a plan that runs on a kind of device."""
        if kind == "cpu" or "first" not in self.seconds:
            return self.seconds
        return {**self.seconds, "first": max(_DEVICE_RUN_S, self.seconds["first"])}

    def score_s(self, run_ns: int, otherwise: float) -> float:
        """Return what scoring may take of a plan whose runs take `run_ns`.

        Args:
            otherwise: Where it is not known what the original took.
        """
        if not self.judged_s:
            return otherwise
        slower = max(1.0, run_ns / max(1, self.run_ns))
        return max(_SCORE_S, 3 * slower * self.judged_s)
