"""A server on a GPU: one and two sessions, with and without batches; bounded memory; no memory.

    python -m benchmarks.gpu serving

ResNet-18 with an open batch under `ortune loadtest`: throughput, p99 and the GPU's memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import ortune as ot
from benchmarks.gpu import models
from benchmarks.gpu.steps import Target
from ortune.core.errors import OrtuneError
from ortune.core.hardware import gpu

_CONCURRENCY, _SECONDS = "1,16", 6
_SETTINGS = ((1, 1), (2, 1), (1, 8), (2, 8))
"""Sessions and rows of a batch."""
_KEPT = (
    *("workload", "concurrency", "requests_per_s", "p50_ns", "p90_ns", "p99_ns", "answered"),
    *("failed", "peak_rss"),
)
_TOO_LITTLE_MB = 48
"""Less than the weights of ResNet-18 take (47 MB) and what 64 pictures need beside them."""


def measure(target: Target) -> Iterator[tuple[str, Any]]:
    """Yield each setting's levels of load, then rows of a session without enough memory."""
    if missing := [name for name in ("uvicorn", "httptools", "orjson") if not find_spec(name)]:
        yield "missing", f"pip install {' '.join(missing)}"
        return
    model = models.write_residual(target.work)
    data = str(target.work / "pictures")
    for sessions, rows in target.some(_SETTINGS):
        instances = str(sessions) if target.dry else f"{sessions}@gpu0"
        path = target.work / f"{sessions}-{rows}.json"
        command = [
            *(sys.executable, "-m", "ortune.cli.main", "loadtest", str(model), "--data", data),
            *("--on", str(target.backend()), "--concurrency", _CONCURRENCY),
            *("--time", str(1 if target.dry else _SECONDS), "--repeats", "1"),
            *("--serve", f"--instances {instances} --max-batch {rows}", "--json", str(path)),
        ]
        with _watch_memory() as memory:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        print(done.stdout[-2000:], done.stderr[-2000:], flush=True)
        told: dict[str, Any] = {"exit": done.returncode, "gpu_memory": max(memory, default=None)}
        if path.is_file():
            told["rows"] = trim_rows(json.loads(path.read_text())["rows"])
        else:
            told["error"] = done.stderr[-800:]
        yield f"sessions={sessions}, rows={rows}", told
    yield "without memory", _time_without_memory(str(model), data, target)


def trim_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is kept of each level of load: no list of every request."""
    return [{key: row[key] for key in _KEPT} for row in rows]


def _time_without_memory(model: str, data: str, target: Target) -> Any:
    """Return the rows of `bench` for 64 pictures at once, the second with too small an arena."""
    on = str(target.backend())
    small = "cpu(threads=1)" if target.dry else f"cuda(memory_limit={_TOO_LITTLE_MB})"
    try:
        timings = ot.bench([model], on=f"{on},{small}", data=data, batch=8, time=2, sets=1)
    except OrtuneError as error:
        return {"error": error.what, "fix": error.fix}
    return [{key: row[key] for key in ("backend", "error")} for row in timings.rows]


@contextmanager
def _watch_memory() -> Iterator[list[int]]:
    """Give what all processes together hold on the first GPU, bytes, twice a second."""
    seen: list[int] = []
    end = threading.Event()

    def look() -> None:
        while not end.wait(0.5):
            seen.extend(one.memory_used or 0 for one in gpu.list_gpus()[:1])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join()
