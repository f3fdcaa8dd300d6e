"""onnxruntime's own CPU kernels."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from ortune.backends import _ort
from ortune.core.backend import Backend, Session
from ortune.core.facts import Facts


@dataclass(frozen=True)
class Cpu(Backend):
    """CPU execution by onnxruntime.

    Attributes:
        threads: Threads inside one operator; 0 takes the CPUs this process may really use.
        level: How far the runtime may rewrite the graph when it loads it.
        disable: Graph optimizers to leave out, by the runtime's names.
    """

    provider: ClassVar[str] = "CPUExecutionProvider"

    level: Literal["disabled", "basic", "extended", "all"] = "all"
    disable: tuple[str, ...] = ()

    @property
    def arithmetic(self) -> frozenset[str]:
        """Integer kernels; weight-only integers are expanded when the model loads."""
        return frozenset({"int8", "int8-dynamic"})

    def missing(self) -> str | None:
        """Return how to install onnxruntime when it is not there."""
        return _ort.missing()

    def tweaks(self, facts: Facts) -> Iterable[Self]:
        """Yield no SkipLayerNormFusion where there are LayerNorms, one thread, a lower level.

        The fused kernel is slower than its parts on the CPU: leaving it out gained 7-8 % in
        float32 and 17-20 % in int8 on MiniLM and BERT.
        """
        if facts.has("LayerNormalization", "ReduceMean", "com.microsoft::SkipLayerNormalization"):
            yield replace(self, disable=("SkipLayerNormFusion",))
        yield replace(self, threads=1)
        yield replace(self, level="extended")

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session on the CPU provider."""
        made = _ort.options(self.threads, self.level, verbose=verbose)
        return _ort.session(path, made, disabled=self.disable)

    def save(self, path: Path, out: Path) -> None:
        """Write the graph as the runtime rewrites it at this level; nothing is run.

        Level ``all`` binds the file to this CPU's layout and instruction sets.
        """
        made = _ort.options(self.threads, self.level, verbose=False, save_to=out)
        with _ort.session(path, made, disabled=self.disable):
            pass
