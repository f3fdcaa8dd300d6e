"""What of the engine's own loop is left behind the server, engine and front end on a core each.

    python -m benchmarks.serving.pinned [--model NAME ...] [--rounds 5] [--seconds 4]

The thread that computes is bound to one core, everything else of the server and the client to the
other: what the front end takes from the engine is seen, not that two cores are fewer than three.
Beside it the engine's own loop, in a process bound to the same core, in turns. Once without
joining, once in batches of 8, each beside the loop of the same. 32 requests in flight over gRPC
and over HTTP. Results: benchmarks/results/serving_pinned.json; exit 1 below 90 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
from tests.real import engines
from tests.serving import Serving, halves, serving

from benchmarks.serving.load import Request, client, loaded
from benchmarks.serving.models import FORMS
from benchmarks.serving.recorded import about, write
from benchmarks.speed.neighbour import to_itself
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine

NAMES = ("minilm", "efficientnet-lite0")
CONCURRENCY, BATCHES, LIMIT = 32, (1, 8), 0.9
THREADS = "cpu(threads=1)"
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", choices=engines.NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    asked = parser.parse_args()
    with to_itself():
        rows = [
            row
            for name in asked.model
            for batch in BATCHES
            for row in _rows(name, batch, asked.rounds, asked.seconds)
        ]
    write("serving_pinned", about() | {"concurrency": CONCURRENCY, "rows": rows})
    return int(not all(row["share"]["value"] >= LIMIT for row in rows))


def _rows(name: str, batch: int, rounds: int, seconds: float) -> Iterator[Row]:
    path, samples = engines.model(name)
    front, core = halves()
    options = ["--on", THREADS, "--max-batch", str(batch)]
    with (
        serving(path, options=options, cpus=front) as server,
        load_engine(path, on=THREADS, max_batch=batch) as engine,
    ):
        for form in ("gRPC", "HTTP, binary"):
            request = FORMS[form](path.stem, samples[0])
            _part(server, request, core)
            turns = []
            for _ in range(rounds):
                own = _own(engine, samples[0], batch, core, seconds)
                turns.append((own, _served(server, request, front, seconds)))
            row = _row(np.array(turns))
            row |= {"model": name, "max batch": batch, "form": form, "rounds": rounds}
            print(json.dumps(row), file=sys.stderr, flush=True)
            yield row


def _row(turns: Any) -> Row:
    shares = turns[:, 1] / turns[:, 0]
    rng = np.random.default_rng(0)
    draws = np.median(shares[rng.integers(0, len(shares), (2000, len(shares)))], axis=1)
    low, high = np.percentile(draws, (0.5, 99.5))
    own, served = np.median(turns, axis=0)
    share = {"value": float(np.median(shares)), "low": float(low), "high": float(high)}
    return {"own_per_second": float(own), "served_per_second": float(served), "share": share}


def _served(server: Serving, request: Request, front: Collection[int], seconds: float) -> float:
    with client(
        request,
        _address(server, request),
        cpus=front,
        concurrency=CONCURRENCY,
        seconds=seconds,
    ) as measure:
        found = measure()
    if found.errors:
        raise RuntimeError(f"errors: {found.errors}")
    return found.per_second


def _own(
    engine: Engine, sample: dict[str, Any], batch: int, core: Collection[int], seconds: float
) -> float:
    """Return samples a second of the engine alone, in this thread."""
    samples, count = [sample] * batch, 0
    with _on(core):
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            if batch == 1:
                engine(**sample)
            else:
                engine.batch(samples)
            count += batch
        return count / (now - start)


def _part(server: Serving, request: Request, core: Collection[int]) -> None:
    """Bind the thread that computes to its core: the busiest of the server under load.

    Threads have no names that the system knows, so they are told apart by what they do.
    """
    process = psutil.Process(server.process.pid)
    before = _times(process)
    loaded(request, _address(server, request), concurrency=8, seconds=2.0)
    after = _times(process)
    busiest = max(after, key=lambda thread: after[thread] - before.get(thread, 0.0))
    os.sched_setaffinity(busiest, core)


def _times(process: psutil.Process) -> dict[int, float]:
    return {one.id: one.user_time + one.system_time for one in process.threads()}


def _address(server: Serving, request: Request) -> str:
    return server.http if request.protocol == "http" else server.grpc


@contextmanager
def _on(cpus: Collection[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    sys.exit(main())
