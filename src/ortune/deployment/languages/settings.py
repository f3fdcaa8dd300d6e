"""What a plan sets on an onnxruntime session, as plain values that any language can spell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortune.backends.cpu import Cpu
from ortune.core.backend import GraphLevel

DISABLE = "optimization.disable_specified_optimizers"
_SHARED = "session.use_env_allocators"


@dataclass(frozen=True)
class SessionSettings:
    """Options of a session on onnxruntime's own CPU kernels.

    Attributes:
        threads: Inside one operator; 0 takes the CPUs at hand.
        inter_threads: Operators side by side; 0 takes the CPUs at hand.
        parallel: Whether operators run side by side.
        level: How far the runtime may rewrite the graph.
        arena: Whether freed memory is kept for the next run.
        small_arena: The arena grows as requested: one that is registered for the process.
        memory_pattern: Activations of a run are planned as one block.
        entries: Session key -> value.
    """

    threads: int
    inter_threads: int
    parallel: bool
    level: GraphLevel
    arena: bool
    small_arena: bool
    memory_pattern: bool
    entries: Mapping[str, str]


def settings(backend: Cpu) -> SessionSettings:
    """Return what a session of this backend is opened with."""
    entries = backend.entries()
    if backend.disable:
        entries[DISABLE] = ";".join(backend.disable)
    return SessionSettings(
        backend.threads,
        backend.inter_threads if backend.parallel else 1,
        backend.parallel,
        backend.level,
        backend.arena,
        entries.pop(_SHARED, "") == "1",
        backend.memory_pattern,
        dict(sorted(entries.items())),
    )
