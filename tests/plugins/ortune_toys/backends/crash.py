"""Dies by a signal."""

from __future__ import annotations

import ctypes
import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.core.backend import Backend
from ortune.core.session import Session
from ortune_toys.backends._fake import fake


@dataclass(frozen=True)
class Crash(Backend):
    """Dies by a signal, a segmentation fault.

    Attributes:
        threads: Ignored.
        divides: By zero: it is an arithmetic fault.
    """

    automatic: ClassVar[bool] = False

    divides: bool = False

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        if self.divides:
            return fake(lambda: signal.raise_signal(signal.SIGFPE))
        return fake(lambda: ctypes.string_at(0))
