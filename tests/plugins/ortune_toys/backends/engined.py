"""A scripted provider that "builds an engine": it sleeps and writes a file; the CPU computes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import engine_cache
from ortune.backends.runtimes.onnxruntime.engine_cache import EngineKey
from ortune.core.backend import Backend
from ortune.core.session import Session
from ortune.graph.io.protobuf import read_identity


@dataclass(frozen=True)
class Engined(Backend):
    """Takes its time to open what is not in the engine cache.

    Attributes:
        build_ms: How long it builds.
    """

    automatic: ClassVar[bool] = False

    build_ms: int = 300

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        key = EngineKey(*read_identity(path), "ToyExecutionProvider", device="toy")
        return engine_cache.open_with_engines(key, lambda folder: self._opening(path, folder))

    @contextmanager
    def _opening(self, path: Path, folder: Path) -> Iterator[Session]:
        engine = folder / "toy.engine"
        if not engine.exists():
            time.sleep(self.build_ms / 1000)
            engine.write_bytes(b"built")
        with Cpu(threads=1).open(path) as opened:
            yield opened
