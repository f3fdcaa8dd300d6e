"""How long this process's threads stood ready without a CPU: the mark of a busy neighbour."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def waited_ns(tasks: Path = _TASKS) -> int:
    """Return nanoseconds all living threads have spent in the run queue, -1 where unreadable.

    Second field of ``/proc/<pid>/task/<tid>/schedstat`` (Linux kernel, sched-stats documentation).
    A thread that ends takes its share along: between two readings whose difference is to count,
    let threads live. Of several threads the waits add up, so that a share of wall time may pass 1.
    """
    total = 0
    try:
        for task in tasks.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # ended since it was listed
                total += _waited(task)
    except (OSError, IndexError, ValueError):
        return -1
    return total


def _waited(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[1])
    except FileNotFoundError:
        if task.exists():  # a kernel without scheduler statistics
            raise PermissionError(f"{task} has no schedstat") from None
        raise
