"""How glibc's allocator treats what is freed: kept for the next request."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` of malloc.h."""
_KEPT = 64 << 20
"""Bytes that each arena keeps free: the largest body, where nothing is said."""
_LARGEST = 32 << 20
"""Bytes from which on memory is mapped for each use: the most that glibc takes."""


def keep_freed() -> bool:
    """Let the process keep what is freed, and return whether it does.

    By its defaults, glibc gives bodies and tensors of some hundred kB back to the system and
    faults their pages in anew for each request: most of what a request of 600 kB costs here.
    """
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _KEPT))
    return False
