"""Dies by a segmentation fault."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.core.backend import Backend
from ortune.core.session import Session
from ortune_toys.backends._fake import fake


@dataclass(frozen=True)
class Crash(Backend):
    """Dies by a segmentation fault.

    Attributes:
        threads: Ignored.
    """

    automatic: ClassVar[bool] = False

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return fake(lambda: ctypes.string_at(0))
