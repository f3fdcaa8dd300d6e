"""How long this process's threads stood ready without a CPU: the mark of a busy neighbour."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


def waited_ns() -> int:
    """Return nanoseconds all threads have spent in the run queue, -1 where it cannot be read.

    Second field of ``/proc/<pid>/task/<tid>/schedstat`` (Linux kernel, sched-stats documentation).
    """
    total = 0
    try:
        for task in _TASKS.iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return -1
    return total
