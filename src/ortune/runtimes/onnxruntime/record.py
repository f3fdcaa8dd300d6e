"""onnxruntime's own profile: its trace, read together with the graph that it executes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.session import Executed, Recorded, Recording, Tensors
from ortune.runtimes.onnxruntime import session as ort
from ortune.runtimes.onnxruntime import trace as ort_trace

GRAPH = "executed.onnx"
"""The graph as the runtime rewrote it, in the recording's folder."""
_BESIDE = 1024
"""Bytes of a weight that is saved beside that graph: a file of 2 GB and more cannot be written."""


class _OrtRecording(ort.OrtSession):
    """An onnxruntime session with the profiler on."""

    def __init__(self, inner: Any, folder: Path, provider: str) -> None:
        super().__init__(inner)
        self._graph = folder / GRAPH
        self._provider = provider
        self._walls: list[int] = []

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        start = time.perf_counter_ns()
        found = super().run(feeds)
        self._walls.append(time.perf_counter_ns() - start)
        return found

    def recorded(self, runs: int) -> Recorded:
        trace = Path(self.inner.end_profiling())
        graph = ort_trace.graph(self._graph) if self._graph.is_file() else None
        walls = np.asarray(self._walls[-runs:], np.float64)
        assigned = self.assigned() if self.records else None
        found = ort_trace.read(trace, graph, walls, assigned)
        if graph is not None:
            return found
        parts = [part for part in self.parts() if part[0] == self._provider]
        return replace(found, nodes=with_parts(found.nodes, parts))


def with_parts(
    nodes: Sequence[Executed], parts: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[Executed, ...]:
    """Say what a provider's nodes stand for, where only its record of their parts is known.

    A provider that compiles makes one node of each part, in order; where the numbers differ,
    each may hold any of them. Other nodes keep their names.

    Args:
        parts: Provider and source nodes of every part of the graph that it took.
    """
    providers = {provider for provider, _ in parts}
    own = [at for at, node in enumerate(nodes) if node.provider in providers]
    every = tuple(name for _, names in parts for name in names)
    made = [node if node.known else replace(node, known=(node.name,)) for node in nodes]
    for order, at in enumerate(own):
        known = parts[order][1] if len(own) == len(parts) else every
        made[at] = replace(nodes[at], known=known)
    return tuple(made)


@contextmanager
def session(
    path: Path,
    made: Any,
    folder: Path,
    *,
    provider: str = "",
    chain: Sequence[tuple[str, Mapping[str, str]]] = (),
    disabled: Sequence[str] = (),
    content: bytes | None = None,
) -> Iterator[Recording]:
    """Open a session as `runtimes.onnxruntime.session` does, with the profiler on.

    Args:
        made: SessionOptions; they already say where the executed graph goes, if anywhere.
        provider: Execution provider that must hold at least one node; empty for the CPU's own.
        chain: As there.
        content: What to load in the place of the file.
    """
    ort.keep_beside(made, _BESIDE)
    made.enable_profiling = True
    made.profile_file_prefix = str(folder / "trace")
    opening = ort.session(
        path, made, provider=provider, chain=chain, disabled=disabled, content=content
    )
    with opening as opened:
        yield _OrtRecording(opened.inner, folder, provider)
