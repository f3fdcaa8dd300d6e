"""A model's outputs on samples, kept as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortune.data.stream import Stream
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker


def keep_outputs(
    worker: Worker, indices: Sequence[int], path: Path, timeout_s: float | None = None
) -> Stream:
    """Have a loaded worker write its outputs on some samples.

    Raises:
        WorkerFailed: It does not run.
    """
    worker.ask(
        "score", indices=list(indices), metrics=[], save=str(path.resolve()), timeout_s=timeout_s
    )
    return Stream(path)


def outputs(job: WorkerJob, indices: Sequence[int], path: Path) -> Stream:
    """Like `keep_outputs`, of a worker that is started for it.

    Raises:
        WorkerFailed: The model does not run on these samples.
    """
    with Worker(job) as worker:
        worker.ask("load")
        return keep_outputs(worker, indices, path)
