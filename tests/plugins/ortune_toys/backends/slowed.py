"""onnxruntime, and then a spin: a twin that is physically slower by a known share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.session import Session, Tensors


@dataclass(frozen=True)
class Slowed(Backend):
    """Every run is followed by a spin for a share of the time that it just took.

    Attributes:
        threads: As of `cpu`.
        by: The share: 0.03 is 3 % slower.
    """

    automatic: ClassVar[bool] = False

    by: float = 0.03

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return _open(path, self.threads, self.by)


class _Session:
    def __init__(self, inner: Session, by: float) -> None:
        self._inner, self._by = inner, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        clock = self._inner.clock
        start = clock()
        outputs = self._inner.run(feeds)
        end = clock()
        until = end + int(self._by * (end - start))
        while clock() < until:
            pass
        return outputs


@contextmanager
def _open(path: Path, threads: int, by: float) -> Iterator[Any]:
    with Cpu(threads=threads).open(path) as inner:
        yield _Session(inner, by)
