"""What sessions of runtimes inside this process have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ortune.core.hardware.cpus import waited_ns


class InProcess:
    """Clock, run-queue time and placement of a session."""

    def placement(self) -> Mapping[str, int]:
        return {}

    def clock(self) -> int:
        return time.perf_counter_ns()

    def waited(self) -> int:
        return waited_ns()
