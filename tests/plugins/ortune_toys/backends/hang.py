"""Never answers."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

from ortune.core.backend import Backend
from ortune.core.session import Session
from ortune_toys.backends._fake import fake

_SECONDS = 600


@dataclass(frozen=True)
class Hang(Backend):
    """Never answers.

    Attributes:
        threads: Ignored.
        at: What it hangs in: load, first (run) or burst.
        computes: It computes for ever; else it sleeps.
    """

    automatic: ClassVar[bool] = False

    at: str = "first"
    computes: bool = False

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        if self.at == "load":
            self._hang()
        runs = count()
        return fake(lambda: None if self.at == "burst" and not next(runs) else self._hang())

    def _hang(self) -> None:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            if not self.computes:  # sleep(0) waits for a timer: it asks for no CPU meanwhile
                time.sleep(_SECONDS)
