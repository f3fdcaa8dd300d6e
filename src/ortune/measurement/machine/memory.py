"""Peak memory of a process."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def peak_rss(status: Path = Path("/proc/self/status")) -> int:
    """Return this process's peak resident set in bytes, 0 where it cannot be read.

    On Linux it is ``VmHWM``. ``getrusage`` is not asked there: its ``ru_maxrss`` survives exec, so
    a worker would show the peak of the process that started it (getrusage(2), vfork).
    """
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = status.read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
