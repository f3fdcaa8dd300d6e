"""onnxruntime's own records of memory: its arena, and what every node allocates."""

from __future__ import annotations

import json
from pathlib import Path

NODES = "session.collect_node_memory_stats_to_file"
"""Session key: the first run writes what every node allocates to the file named by it."""
_HELD, _PEAK = "mem_arena_held", "mem_in_use_peak"


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
