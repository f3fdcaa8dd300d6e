"""What samples take of memory and disk, asked before anything of that size is allocated."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortune.core.errors import BadData
from ortune.core.hardware import memory
from ortune.core.wording import format_count

_UNASKED = 32 * 2**20
"""Smaller than this nothing is asked: it costs more than it tells."""
_COPIES = 3
"""Of a sample while it is read: as it came, as the model takes it, as it is written."""
_RESERVE, _RESERVED = 2**30, 0.05
"""What of a disk is left free, in bytes, or as a share of a small one."""
_LISTED = 400
"""Bytes of memory that a sample's digest, label and place in the file take."""
_LESS = "give smaller or fewer samples, or free some memory"


def require_memory(size: int, subject: str, fix: str = _LESS) -> None:
    """Check that memory for a sample of so many bytes may be taken, else raise BadData."""
    if size < _UNASKED:
        return
    required, available = _COPIES * size, memory.count_allowed_bytes()
    if required > available:
        source = "are free" if memory.read_limit() is None else "is the memory limit"
        raise BadData(
            f"{subject} would take {memory.format_bytes(required)} of memory, and "
            f"{memory.format_bytes(available)} {source}",
            fix=fix,
        )


def require_disk(size: int, folder: Path, subject: str, fix: str) -> None:
    """Check that a folder's disk has room for so many bytes, else raise BadData."""
    if size > (room := disk_room(folder)):
        sizes = memory.format_bytes(size), memory.format_bytes(room)
        raise BadData(
            f"{subject} would take {sizes[0]} in {folder}, and {sizes[1]} are free there", fix=fix
        )


def require_list_memory(count: int) -> None:
    """Check that memory for the list of so many samples may be taken, else raise BadData."""
    if _LISTED * count > memory.count_allowed_bytes():
        raise BadData(
            f"{format_count(count, 'sample')} and more: their list alone would take over "
            f"{memory.format_bytes(_LISTED * count)} of memory",
            fix="give fewer samples, or end the generator",
        )


def disk_room(folder: Path) -> int:
    """Return the bytes that may be written below a folder, which need not be there yet."""
    above = [folder.absolute(), *folder.absolute().parents]
    existing = next(path for path in above if path.exists())
    usage = shutil.disk_usage(existing)
    return max(0, usage.free - min(_RESERVE, int(_RESERVED * usage.total)))


def array_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array, however large: Python's integers do not overflow."""
    return math.prod(map(int, shape)) * dtype.itemsize
