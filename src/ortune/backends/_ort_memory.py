"""onnxruntime's own records of memory: its arena, and what every node allocates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ortune.backends.cpu import Cpu

_NODES = "session.collect_node_memory_stats_to_file"
_HELD, _PEAK = "mem_arena_held", "mem_in_use_peak"


def watched(backend: Cpu, file: Path) -> Cpu:
    """Return the backend such that its first run writes what nodes allocate to `file`.

    Memory patterns are off: with them buffers are planned for the whole graph and no node
    allocates any (onnxruntime, partitioning with the CUDA provider).
    """
    return replace(backend, memory_pattern=False, config=(*backend.config, f"{_NODES}={file}"))


def arena(trace: Path) -> dict[str, int] | None:
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
