"""Memory: what is free here, and what this process and its workers may take of it."""

import ctypes
import math
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakSet

from ortune.core.hardware.cpus import list_cgroups

_LIMIT: ContextVar[int | None] = ContextVar("memory_limit", default=None)
_SHARE = 0.9
"""Of what is free, where no limit is given: the rest is for the system."""
_CGROUPS = Path("/sys/fs/cgroup")


LARGE_MAP = 256 * 2**20
"""Bytes of a mapped file whose pages are not kept while a worker runs."""
_MAPS: WeakSet[mmap.mmap] = WeakSet()


def map_file(path: Path) -> mmap.mmap:
    """Map a file for reading. `release_maps` gives its pages back where it is large."""
    with path.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    if len(data) >= LARGE_MAP:
        _MAPS.add(data)
    return data


def release_maps() -> None:
    """Release the pages of large files that were read; later reads fetch them again."""
    if sys.platform != "win32":
        for data in list(_MAPS):
            if not data.closed:
                data.madvise(mmap.MADV_DONTNEED)


def trim_heap() -> None:
    """Return to the system what was freed and the C library keeps; only glibc does."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def limit_memory(size: int | None) -> Iterator[None]:
    """Give what runs in the block a limit in bytes, which all its workers share.

    None leaves the limit that there is.
    """
    token = _LIMIT.set(_LIMIT.get() if size is None else size)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def read_limit() -> int | None:
    """Return the limit that was asked for, in bytes; None where none was."""
    return _LIMIT.get()


def count_free_bytes(root: Path = _CGROUPS, proc: Path = Path("/proc/self")) -> int:
    """Return the bytes that can be taken now: of the machine, or less where a cgroup says so."""
    import psutil

    cgroup_free = [
        _read_cgroup_free(folder) for folder in [*list_cgroups(root, proc), root / "memory"]
    ]
    return max(
        0, min([psutil.virtual_memory().available, *(n for n in cgroup_free if n is not None)])
    )


def count_allowed_bytes(bytes_in_use: int = 0) -> int:
    """Return the bytes that may be taken in all: the limit, else most of what is free.

    Args:
        bytes_in_use: Bytes that are taken already by those who share it.
    """
    return _LIMIT.get() or int(_SHARE * (count_free_bytes() + bytes_in_use))


def format_bytes(size: float) -> str:
    """Write bytes in units of 1024, as bounds are given: ``95.4 MiB``."""
    if not math.isfinite(size):
        return "unknown"
    power = min(3, max(0, (math.frexp(size)[1] - 1) // 10))
    return f"{size / 1024**power:.4g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def _read_cgroup_free(folder: Path) -> int | None:
    """Return what a cgroup, v2 or v1, leaves of its memory; file pages can be dropped."""
    for most, now, stat, name in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            bound = int((folder / most).read_text())  # "max" where there is none
            lines = (folder / stat).read_text().splitlines()
            dropped = next((int(x.split()[1]) for x in lines if x.split()[0] == name), 0)
            return bound - int((folder / now).read_text()) + dropped
    return None


def peak_rss(status: Path = Path("/proc/self/status")) -> int:
    """Return this process's peak resident set in bytes, 0 where it cannot be read.

    On Linux it is ``VmHWM``. ``getrusage`` is not asked there: its ``ru_maxrss`` survives exec, so
    a worker would show the peak of the process that started it (getrusage(2), vfork).
    """
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = status.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
