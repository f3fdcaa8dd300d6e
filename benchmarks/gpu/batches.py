"""What another number of rows costs convolutions on CUDA, by how cuDNN's algorithm is found.

    python -m benchmarks.gpu batches

ResNet-18 with an open batch, float32: runs of one size, of 1 and 8 rows in turns, and of 1 to 8
drawn at random. Medians in ms of a call by NumPy arrays, copies included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu import models
from benchmarks.gpu.steps import Target
from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda, Search
from ortune.core.backend import Backend
from ortune.core.session import Session

_MOST, _RUNS, _WARM_UPS = 8, 40, 5


def measure(target: Target) -> Iterator[tuple[str, Any]]:
    """Yield a row for each search of cuDNN, with channels first and last."""
    model = models.write_residual(target.work)
    rng = np.random.default_rng(0)
    pictures = {
        rows: rng.standard_normal((rows, 3, 224, 224), np.float32) for rows in range(1, _MOST + 1)
    }
    drawn = [int(rows) for rows in rng.integers(1, _MOST + 1, _RUNS)]
    backends: list[Backend] = [Cpu()]
    if not target.dry:
        backends = [
            Cuda(search=s, prefer_nhwc=last) for last in (False, True) for s in get_args(Search)
        ]
    for backend in backends:
        with backend.open(model) as session:
            row = {"first": time_runs(session, [pictures[1]])}
            for name, sizes in (
                ("1 row", [1] * _RUNS),
                (f"{_MOST} rows", [_MOST] * _RUNS),
                (f"1 and {_MOST} rows in turns", [1, _MOST] * (_RUNS // 2)),
                (f"1 to {_MOST} rows", drawn),
            ):
                batches = [pictures[rows] for rows in sizes]
                time_runs(session, batches[:_WARM_UPS])
                row[name] = time_runs(session, batches)
        yield str(backend), row


def time_runs(session: Session, batches: Sequence[NDArray[np.float32]]) -> float:
    """Return the median of the times that the runs take, in ms."""
    times = []
    for batch in batches:
        began = time.perf_counter()
        session.run({"image": batch})
        times.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times))
