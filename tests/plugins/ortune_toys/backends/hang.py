"""Never answers."""

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
class Hang(Backend):
    """Never answers.

    Attributes:
        threads: Ignored.
    """

    automatic: ClassVar[bool] = False

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return fake(lambda: time.sleep(600))
