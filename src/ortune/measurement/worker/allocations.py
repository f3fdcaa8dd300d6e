"""What a runtime allocates for a model, by its own records; asked of a worker of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.core.errors import BackendMissing
from ortune.core.plugins import codec
from ortune.measurement.job import MAIN
from ortune.measurement.machine.memory import read_nodes
from ortune.measurement.worker.workbench import Workbench

_RUNS = 2
_NODES = "session.collect_node_memory_stats_to_file"
"""Session key: the first run writes what every node allocates to the file named by it."""
_HELD, _PEAK = "mem_arena_held", "mem_in_use_peak"


def arena(bench: Workbench) -> dict[str, Any]:
    """Run under the runtime's profiler; return the arena's ``held`` and ``peak`` bytes.

    ``arena`` is None, with a reason in ``why``, where the runtime records none.
    """
    folder = bench.out / "arena"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        opened = bench.job.backend.record(bench.job.models[MAIN], folder)
    except BackendMissing:
        return {"arena": None, "why": "this runtime does not record its memory"}
    with opened as session:
        for _ in range(_RUNS):
            for _, feeds in bench.round(0):
                session.run(feeds)
        session.recorded(1)
    traces = sorted(Path(folder).glob("*trace*.json"))
    found = _in_arena(traces[-1]) if traces else None
    return {"arena": found, "why": "" if found else "the runtime recorded no arena"}


def nodes(bench: Workbench) -> dict[str, Any]:
    """Return `NodeMemory` of every node of the executed graph, the biggest first.

    ``nodes`` is None, with a reason in ``why``, where the runtime records none.
    """
    backend = bench.job.backend
    if not isinstance(backend, Cpu):
        return {"nodes": None, "why": f"{backend.name()} keeps no record of memory by node"}
    file = bench.out / "nodes.csv"
    with _recording_nodes(backend, file).open(bench.job.models[MAIN]) as session:
        for _, feeds in bench.round(0):
            session.run(feeds)
    if not file.exists():
        return {"nodes": None, "why": "the runtime wrote no record of memory by node"}
    return {"nodes": codec.encode(read_nodes(file)), "why": ""}


def _recording_nodes(backend: Cpu, file: Path) -> Cpu:
    """Return the backend such that its first run writes what nodes allocate to `file`.

    Memory patterns are off: with them buffers are planned for the whole graph and no node
    allocates any (onnxruntime, partitioning with the CUDA provider).
    """
    return replace(backend, memory_pattern=False, config=(*backend.config, f"{_NODES}={file}"))


def _in_arena(trace: Path) -> dict[str, int] | None:
    """Return bytes that the arena held and of these the most in use, from a profile's events.

    The events of onnxruntime 1.31 carry them (PR#29058). None where there are none: an older
    runtime, or no arena.
    """
    events = json.loads(trace.read_text(encoding="utf-8"))
    known = [one["args"] for one in events if _HELD in one.get("args", {})]
    if not known:
        return None
    return {
        "held": max(int(args[_HELD]) for args in known),
        "peak": max(int(args[_PEAK]) for args in known),
    }
