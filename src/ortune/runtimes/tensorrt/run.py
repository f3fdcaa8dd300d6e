"""Running an engine: whole calls, and computing apart from copying."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.core.session import Session, Tensors
from ortune.runtimes.in_process import InProcess
from ortune.runtimes.tensorrt import build, io, library
from ortune.runtimes.tensorrt.build import BuildOptions
from ortune.runtimes.tensorrt.context import EngineContext
from ortune.runtimes.tensorrt.cuda import Cuda

PROVIDER = "TensorRT"
"""Under this name the engine's layers are shown as placed."""
SUFFIXES = (".engine", ".plan")
"""Of files that hold an engine; any other is an ONNX file to build one of."""


@contextmanager
def session(path: Path, options: BuildOptions) -> Iterator[Session]:
    """Open an engine, or build one of an ONNX file.

    Raises:
        BackendMissing: TensorRT or the device is not there.
        BadModel: TensorRT does not take the file.
        BadSettings: An input is of open size and has no range.
    """
    plan = path.read_bytes() if path.suffix in SUFFIXES else build.engine(path, options)
    opened = Engine(plan, options)
    try:
        yield opened
    finally:
        opened.close()


class Engine(InProcess):
    """An engine behind the Session protocol; each calling thread has a context of its own."""

    def __init__(self, plan: bytes, options: BuildOptions) -> None:
        self._trt = library.load()
        self._cuda = Cuda(options.device)
        self._log = library.logger(self._trt)
        self._engine = build.deserialize(self._trt, self._log, plan, options.plugins)
        self._io = io.described(self._trt, self._engine)
        self._own, self._all = threading.local(), list[EngineContext]()

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Copy in, run once, copy out."""
        self.stage(feeds)
        self._mine.start()
        return self._mine.fetch()

    def stage(self, feeds: Tensors) -> None:
        """Copy inputs to the device and make room for outputs.

        Raises:
            BadData: A shape lies outside every profile, or an input is missing or of another type.
        """
        self._mine.stage(feeds)

    def compute(self) -> None:
        """Run once on what was staged; returns when the device is done."""
        self._mine.start()
        self._mine.wait()

    def placement(self) -> Mapping[str, int]:
        """All layers of the engine run here."""
        return {PROVIDER: self._engine.num_layers}

    def close(self) -> None:
        """Give the device memory of all threads back."""
        for one in self._all:
            one.close()
        self._all.clear()

    @property
    def _mine(self) -> EngineContext:
        if not hasattr(self._own, "context"):
            self._cuda.use()
            self._own.context = EngineContext(
                self._trt, self._engine, self._io, self._cuda, self._log
            )
            self._all.append(self._own.context)
        found: EngineContext = self._own.context
        return found
