"""The worker's side of the ceilings: time models of known work against each other in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.measurement.worker.workbench import Workbench

_ROUNDS, _FEWEST = 8, 3
_WARM = 3
_SLOW = 20_000_000
"""ns of a run from which one warm-up is enough."""


def peaks(bench: Workbench, inputs: Mapping[str, Sequence[int]], seconds: float) -> dict[str, Any]:
    """Run every model in short bursts, round after round; return each round's least time.

    Args:
        bench: Its models have one float32 input each, ``x``.
        seconds: Timed in all; on a busy machine the last rounds are left out.
    """
    made = {shape: _noise(shape) for shape in {tuple(s) for s in inputs.values()}}
    feeds = {name: made[tuple(shape)] for name, shape in inputs.items()}
    for name, feed in feeds.items():
        for turn in range(_WARM):
            if turn and _time(bench, name, feed) > _SLOW:
                break
    each = seconds / _ROUNDS / len(feeds) * 1e9
    least: dict[str, list[int]] = {name: [] for name in feeds}
    until = time.perf_counter() + 1.25 * seconds
    for turn in range(_ROUNDS):
        if turn >= _FEWEST and time.perf_counter() > until:
            break
        for name, feed in feeds.items():
            least[name].append(_burst(bench, name, feed, each))
    return {"least_ns": least}


def _noise(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return numbers of both signs; large tensors repeat them, which is soon made."""
    few = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    return np.resize(few, tuple(shape))


def _burst(bench: Workbench, name: str, feed: NDArray[np.float32], limit_ns: float) -> int:
    """Return the least time of the runs that fit the limit, two at least."""
    found = [_time(bench, name, feed), _time(bench, name, feed)]
    while sum(found) < limit_ns:
        found.append(_time(bench, name, feed))
    return min(found)


def _time(bench: Workbench, name: str, feed: NDArray[np.float32]) -> int:
    session = bench.sessions[name]
    start = time.perf_counter_ns()
    session.run({"x": feed})
    return time.perf_counter_ns() - start
