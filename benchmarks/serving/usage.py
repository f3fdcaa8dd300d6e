"""CPU time and memory of a server: the process with all that it started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all below it that run now; none when it is gone."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a tree so far."""
    total = 0.0
    for one in tree(pid):
        with suppress(psutil.NoSuchProcess):
            used = one.cpu_times()
            total += used.user + used.system
    return total


def memory(pid: int) -> int:
    """Return the resident bytes of a tree; what processes share counts in each."""
    total = 0
    for one in tree(pid):
        with suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def gone(processes: list[psutil.Process], seconds: float = 10) -> list[psutil.Process]:
    """Wait for processes that were told to end; kill and return those that did not."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=seconds)
    return left
