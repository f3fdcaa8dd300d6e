"""Several processes of one job at work at once: what each pays for the company."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker
from ortune.measurement.timing.turns import live, warm

_BURST_NS = 300_000_000


def slowdown(job: WorkerJob, processes: int, out: Path, rounds: int = 5) -> float:
    """Return the mean time of a run among `processes` over its mean time alone, 1 at least.

    One process alone and all of them at once take turns; the rates of the processes add up, and
    the median of the turns counts.

    Args:
        job: Its backend's threads are those of each process.

    Raises:
        WorkerFailed: One of them does not run.
    """
    starts = [partial(Worker, replace(job, out=out / str(place))) for place in range(processes)]
    with live(*starts) as started, ThreadPoolExecutor(processes) as pool:
        workers = [worker for worker, _ in started]
        runs = max(4, _BURST_NS // max(1, max(warm(worker).run_ns for worker in workers)))
        found = []
        for _ in range(rounds):
            for worker in workers:
                worker.ask("rest")  # threads that still spin are company
            alone = _rate(workers[0], runs)
            found.append(processes * alone / sum(pool.map(lambda w: _rate(w, runs), workers)))
        return max(1.0, median(found))  # company speeds nothing up: less than 1 is noise


def _rate(worker: Worker, runs: int) -> float:
    latency: Sequence[int] = worker.ask("burst", at=0, runs=runs)["latency_ns"]
    return 1e9 / fmean(latency)
