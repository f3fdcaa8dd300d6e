"""Takes memory without end."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.core.backend import Backend
from ortune.core.session import Session
from ortune_toys.backends._fake import fake


@dataclass(frozen=True)
class Hog(Backend):
    """Takes memory without end.

    Attributes:
        threads: Ignored.
    """

    automatic: ClassVar[bool] = False

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return fake(_fill)


def _fill() -> None:
    held = []
    for _ in range(100):
        held.append(bytearray(b"x" * (64 << 20)))
        time.sleep(0.05)
    raise AssertionError("the parent did not watch the memory")
