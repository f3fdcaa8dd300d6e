"""Real outputs by onnxruntime, but a clock that follows a script: searches become repeatable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.session import Session, Tensors
from ortune.core.workload import Workload


@dataclass(frozen=True)
class Scripted(Backend):
    """A run takes a nanosecond a byte of the model file, times `slow`.

    Attributes:
        threads: Ignored.
        slow: Factor on every run.
    """

    automatic: ClassVar[bool] = False

    slow: float = 1.0

    @property
    def arithmetic(self) -> frozenset[str]:
        return frozenset({"int8", "int8-dynamic", "int8-weights"})

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        yield self

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        return {"slow": [replace(self, slow=self.slow * by) for by in (0.9, 1.05)]}

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        return _open(path, self.slow)


class _Session:
    def __init__(self, inner: Session, cost_ns: int) -> None:
        self._inner, self._cost, self._now = inner, cost_ns, 0

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        self._now += self._cost
        return self._inner.run(feeds)

    def placement(self) -> Mapping[str, int]:
        return self._inner.placement()

    def clock(self) -> int:
        return self._now

    def waited(self) -> int:
        return 0


@contextmanager
def _open(path: Path, slow: float) -> Iterator[Session]:
    with Cpu(threads=1).open(path) as inner:
        yield _Session(inner, int(1000 * path.stat().st_size * slow))
