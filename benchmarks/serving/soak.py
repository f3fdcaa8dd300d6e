"""What befalls a server: long load, overload, its end, a new file, bad clients.

    python -m benchmarks.serving.soak [--phase NAME ...] [--minutes 10]

The knee is the highest rate of a sweep of closed loops (1 to 32 at once). Phases:

`steady`: 80 % of the knee, open loop, HTTP and gRPC in halves: no error, memory flat within 2 %.
`overload`: 200 % of it with a queue of 32: refusals alone, admitted requests within the limit,
afterwards as before.
`end`: SIGTERM under load: every accepted request answered, exit 0, no process left.
`reload`: the file is replaced ten times under load by one that answers otherwise: no error.
`bad clients`: 200 that hang and 8 that flood; `fuzzed`: 10,000 broken bodies. Another client's
latency is watched meanwhile, beside what it was alone.

Results: benchmarks/results/serving_soak.json; exit 1 when something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tests.serving import Serving, serving

from benchmarks.serving import answers, usage
from benchmarks.serving.hostile import flooding, hanging, throw
from benchmarks.serving.load import Load, client, loaded
from benchmarks.serving.models import MILLISECOND, SMALL, binary, message
from benchmarks.serving.recorded import about, write
from benchmarks.speed.neighbour import to_itself

THREADS = "cpu(threads=1)"
QUEUE, CONNECTIONS, RELOADS = 32, 64, 10
FLAT, EVERY_S = 0.02, 2.0
FUZZED, HANGING, FLOODING = 10_000, 200, 8
SLOWER, BESIDE_FLOOD = 2.0, 8.0
"""What another client's median may grow by while clients hang, or while eight of them flood: they
get their turns too, and load the same CPUs."""
GROWN = 0.15
"""Memory that their connections may leave behind."""
REFUSALS = {"503", "UNAVAILABLE"}
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", nargs="+", choices=list(PHASES), default=list(PHASES))
    parser.add_argument("--minutes", type=float, default=10.0, help="of steady load")
    asked = parser.parse_args()
    rows: dict[str, Row] = {}
    with TemporaryDirectory(prefix="ortune-soak-") as folder, to_itself():
        models = [one.write(Path(folder)) for one in (MILLISECOND, SMALL)]
        for name in asked.phase:
            rows[name] = PHASES[name](models, asked.minutes)
            print(json.dumps({name: rows[name]}), file=sys.stderr, flush=True)
    write("serving_soak", about() | {"phases": rows})
    return int(not all(row["within"] for row in rows.values()))


def started(models: Sequence[Path], *options: str) -> AbstractContextManager[Serving]:
    return serving(*models, options=["--on", THREADS, *options])


def knee(server: Serving) -> float:
    """Return the most requests a second that closed loops get, over gRPC."""
    request = message(MILLISECOND.name, {"x": MILLISECOND.array()})
    found = [
        loaded(request, server.grpc, concurrency=count, seconds=3.0)
        for count in (1, 2, 4, 8, 16, 32)
    ]
    return max(one.per_second for one in found)


# --- phases -----------------------------------------------------------------------------------


def steady(models: Sequence[Path], minutes: float) -> Row:
    with started(models) as server, ExitStack() as stack:
        rate = 0.8 * knee(server)
        seconds = 60 * minutes
        loads = _both(stack, server, rate=rate / 2, concurrency=64, seconds=seconds)
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(one) for one in loads]
            sizes = []
            while not all(one.done() for one in waiting):
                sizes.append(usage.memory(server.process.pid))
                time.sleep(EVERY_S)
            found = [one.result() for one in waiting]
    first, last = _ends(sizes)
    row = {"rate": rate, "seconds": seconds, **_seen(found)}
    row |= {"memory_mb": [first / 1e6, last / 1e6], "grown": last / first - 1}
    return row | {"within": not row["errors"] and abs(row["grown"]) <= FLAT}


def overload(models: Sequence[Path], minutes: float) -> Row:
    with started(models, "--max-queue", str(QUEUE)) as server, ExitStack() as stack:
        most = knee(server)
        before = _watched(server, 0.4 * most)
        many = {"rate": most, "concurrency": CONNECTIONS, "seconds": 30.0, "from_sent": True}
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda one: one(), _both(stack, server, **many)))
        size = usage.memory(server.process.pid)
        after = _watched(server, 0.4 * most)
    limit_ms = 1e3 * 2 * (QUEUE + 2 * CONNECTIONS) / most  # twice what is under way at most
    row = {"rate": 2 * most, **_seen(found), "limit_ms": limit_ms, "memory_mb": size / 1e6}
    row |= {"p50 before_ms": before.percentiles["50"], "p50 after_ms": after.percentiles["50"]}
    fine = row["errors"].keys() <= REFUSALS and row["errors"] and row["p99_ms"] <= limit_ms
    recovered = not after.errors and after.percentiles["50"] <= 1.5 * before.percentiles["50"]
    return row | {"within": bool(fine and recovered)}


def end(models: Sequence[Path], minutes: float) -> Row:
    with started(models) as server, ExitStack() as stack:
        below = usage.tree(server.process.pid)
        loads = _both(stack, server, concurrency=16, seconds=6.0)
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(one) for one in loads]
            time.sleep(2)
            start = time.monotonic()
            code = server.end()
            taken = time.monotonic() - start
            found = [one.result() for one in waiting]
        left = [one.pid for one in usage.gone(below, 2)]
        said = server.said
    row = {**_seen(found), "exit": code, "seconds": taken, "processes left": len(left)}
    # gRPC's core itself cancels calls that come while it shuts down: no handler hears of them.
    refused = row["errors"].keys() <= {"refused", "CANCELLED", *REFUSALS}
    answered = "every accepted request was answered" in said and "=CANCELLED" not in said
    return row | {"within": refused and answered and code == 0 and not left}


def reload(models: Sequence[Path], minutes: float) -> Row:
    """Exchange the file between two that answer otherwise, and wait until each is served."""
    served = models[0]
    files = [shutil.copy(served, served.with_suffix(".one")), _other(served)]
    right = [answers.expected(Path(one), MILLISECOND.array()) for one in files]
    with started(models, "--watch") as server, ExitStack() as stack:
        loads = _both(stack, server, concurrency=8, seconds=6.0 * RELOADS)
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(one) for one in loads]
            seen = 0
            for turn in range(1, RELOADS + 1):
                draft = Path(shutil.copy(files[turn % 2], served.with_suffix(".draft")))
                draft.replace(served)
                seen += _serves(server, right[turn % 2])
            found = [one.result() for one in waiting]
        said = server.said
    row = {**_seen(found), "files": RELOADS, "served": seen, "Traceback": "Traceback" in said}
    return row | {"within": not row["errors"] and seen == RELOADS and not row["Traceback"]}


def _other(model: Path) -> Path:
    """Write the same model with halved weights."""
    proto, path = onnx.load(model), model.with_suffix(".two")
    for one in proto.graph.initializer:
        halved = onnx.numpy_helper.to_array(one) / 2
        one.CopyFrom(onnx.numpy_helper.from_array(halved, one.name))
    onnx.save(proto, path)
    return path


def _serves(server: Serving, expected: NDArray[Any]) -> bool:
    """Wait until the server answers so."""
    request = message(MILLISECOND.name, {"x": MILLISECOND.array()})
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if np.allclose(answers.ask(request, server.grpc), expected.ravel(), 1e-3, 1e-3):
            return True
        time.sleep(0.1)
    return False


def bad_clients(models: Sequence[Path], minutes: float) -> Row:
    with started(models) as server:
        alone = _watched(server, 100)
        flood = binary(SMALL.name, {"x": SMALL.array()})
        before = usage.memory(server.process.pid)
        with hanging(server.http, server.grpc, HANGING):
            hung = _watched(server, 100)
        with flooding(flood, server.http, FLOODING):
            flooded = _watched(server, 100)
        time.sleep(1)
        after = _watched(server, 100)
        grown = usage.memory(server.process.pid) / before - 1
    row = _medians(alone=alone, hanging=hung, flooding=flooded, after=after)
    row |= {"grown": grown, "hang": HANGING, "flood": FLOODING}
    fine = not any(one.errors for one in (alone, hung, flooded, after))
    quiet = row["hanging_ms"] <= SLOWER * row["alone_ms"] >= row["after_ms"]
    quiet = quiet and row["flooding_ms"] <= BESIDE_FLOOD * row["alone_ms"]
    return row | {"within": fine and quiet and grown <= GROWN}


def fuzzed(models: Sequence[Path], minutes: float) -> Row:
    with started(models) as server:
        alone = _watched(server, 100)
        throw(server.http, server.grpc, FUZZED // 10, seed=0)  # what grows once grows here
        before = usage.memory(server.process.pid)
        with (
            client(
                message(SMALL.name, {"x": SMALL.array()}),
                server.grpc,
                concurrency=4,
                rate=100.0,
                seconds=10.0,
            ) as watch,
            ThreadPoolExecutor() as pool,
        ):
            watching = pool.submit(watch)
            found = throw(server.http, server.grpc, FUZZED, seed=1)
            meanwhile = watching.result()
        grown = usage.memory(server.process.pid) / before - 1
        after = _watched(server, 100)
        said = server.said
    row = _medians(alone=alone, meanwhile=meanwhile, after=after)
    row |= {"answers": dict(sorted(found.items())), "grown": grown}
    broken = found["HTTP 500"] + found["gRPC INTERNAL"] + found["gRPC UNKNOWN"]
    fine = not (meanwhile.errors or after.errors or broken or "Traceback" in said)
    quiet = row["meanwhile_ms"] <= SLOWER * row["alone_ms"] >= row["after_ms"]
    return row | {"within": bool(fine and quiet and grown <= FLAT)}


PHASES: dict[str, Callable[[Sequence[Path], float], Row]] = {
    "steady": steady,
    "overload": overload,
    "end": end,
    "reload": reload,
    "bad clients": bad_clients,
    "fuzzed": fuzzed,
}


# --- clients ----------------------------------------------------------------------------------


def _both(stack: ExitStack, server: Serving, **how: Any) -> list[Callable[[], Load]]:
    """Start a client of each protocol; return what measures."""
    return [
        stack.enter_context(
            client(make(MILLISECOND.name, {"x": MILLISECOND.array()}), where, **how)
        )
        for make, where in ((binary, server.http), (message, server.grpc))
    ]


def _watched(server: Serving, rate: float) -> Load:
    """Return what one well-behaved client sees for five seconds."""
    request = message(SMALL.name, {"x": SMALL.array()})
    return loaded(request, server.grpc, concurrency=4, rate=min(rate, 100.0), seconds=5.0)


def _seen(loads: Sequence[Load]) -> Row:
    errors: dict[str, int] = {}
    for one in loads:
        for status, count in one.errors.items():
            errors[status] = errors.get(status, 0) + count
    return {
        "answered": sum(one.answered for one in loads),
        "errors": errors,
        "p50_ms": max(one.percentiles.get("50", float("nan")) for one in loads),
        "p99_ms": max(one.percentiles.get("99", float("nan")) for one in loads),
    }


def _medians(**loads: Load) -> Row:
    return {f"{name}_ms": one.percentiles["50"] for name, one in loads.items()}


def _ends(sizes: Sequence[int]) -> tuple[float, float]:
    """Return the memory behind the first fifth, which warms up, and at the end: medians."""
    part = max(len(sizes) // 5, 1)
    return float(np.median(sizes[part : 2 * part] or sizes)), float(np.median(sizes[-part:]))


if __name__ == "__main__":
    sys.exit(main())
