"""What the engine costs beyond the bare session, and what its buffers and batches bring, as JSON.

    python -m benchmarks.speed.engine_overhead [kind of row ...]

Sides of a row run the very same onnxruntime session where they can, so that its place in memory
is no difference, and take turns A B B A, so that clock changes hit both alike. A row has the
median nanoseconds of each, and the difference with its 99 % bootstrap interval.

`call`: `engine(...)` beside `session.run`, on toys and real models; within 3 % or 20 us.
`bound`: the same with two instances, whose callers are bound to their CPUs for each call.
`submit`: one caller that awaits, beside `engine(...)`: what queue, thread and event loop cost.
`buffers, ...`: beside `session.run`, io-binding with outputs that are new for each call, as a
caller who keeps them needs, or written over by the next call; and outputs that stay the runtime's.
`batch`: 16 samples through `engine.batch` beside as many single calls.
`memory`: resident memory of the process before and after 100,000 calls, MB.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import psutil
from tests.real import engines

from benchmarks.result_files import result_file, write_results
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime.session import OrtSession
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.instances import Instances, Serving
from ortune.bundle.engine.load import load_engine
from ortune.core.hardware.cpus import usable_cpus
from ortune.measurement.machine.machine import describe_machine

TOYS: dict[str, tuple[str, Any, Any]] = {
    "1 input, 5 us": (
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,256] x) => (float[N,64] y) { y = Gemm(x, w) }""",
        {"w": (256, 64)},
        {"x": (1, 256)},
    ),
    "8 inputs": (
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N] a, float[N] b, float[N] c, float[N] d,
           float[N] e, float[N] f, float[N] h, float[N] i) => (float[N] y) {
            y = Sum(a, b, c, d, e, f, h, i)
        }""",
        {},
        dict.fromkeys("abcdefhi", (64,)),
    ),
    "1 input, 1 ms": (
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,1024] x) => (float[N,1000] y) {
            a = Gemm(x, w)
            b = Relu(a)
            c = Gemm(b, v)
            d = Relu(c)
            y = Gemm(d, u)
        }""",
        {"w": (1024, 2048), "v": (2048, 2048), "u": (2048, 1000)},
        {"x": (1, 1024)},
    ),
    "1.2 MB in and out": (
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,320,320] x) => (float[N,3,320,320] y) { y = Relu(x) }""",
        {},
        {"x": (1, 3, 320, 320)},
    ),
    "10 MB in and out": (
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,908,908] x) => (float[N,3,908,908] y) { y = Relu(x) }""",
        {},
        {"x": (1, 3, 908, 908)},
    ),
}
SMALL = list(TOYS)[:3]
SECONDS, BLOCK_NS = 4.0, 4_000_000
"""Of a row, and of a turn where several runs fit into it."""
BLOCKS, RUNS, SLOW_NS = (20, 200), 9, 5_000_000
"""Blocks of a row, and the fewest runs of a block's side, of models that are not slow."""
LIMIT_NS, LIMIT_SHARE = 20_000, 0.03
CALLS = 100_000
Feeds = dict[str, np.ndarray]
Row = dict[str, Any]
Model = tuple[str, Path, list[Feeds]]


def main(*wanted: str) -> int:
    """Measure and print one JSON object; exit 1 when a limit is missed."""
    rows = []
    for kind, (measured, models) in ROWS.items():
        if not wanted or kind in wanted:
            for name, path, samples in models():
                row = {"kind": kind, "model": name, **measured(path, samples)}
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    packages = {name: version(name) for name in ("ortune", "onnxruntime", "numpy")}
    result = {"benchmark": "engine overhead", "machine": describe_machine(), "rows": rows}
    result |= {"versions": packages, "load average": os.getloadavg()}
    write_results(result_file("engine_overhead"), result)
    return 0 if all(row.get("within", True) for row in rows) else 1


# --- rows -------------------------------------------------------------------------------------


def called(path: Path, samples: list[Feeds]) -> Row:
    bare, feeds = engines.bare(path), samples[0]
    names = outputs(bare)
    with around(path, bare) as engine:
        found = compared(lambda: bare.run(names, feeds), lambda: engine(**feeds))
    within = found["extra_ns"]["high"] <= max(LIMIT_NS, LIMIT_SHARE * found["first_ns"])
    return found | {"within": bool(within)}


def bound(path: Path, samples: list[Feeds]) -> Row:
    bare, feeds, cpus = engines.bare(path), samples[0], usable_cpus()
    names = outputs(bare)
    with around(path, bare, bare, cpus=[{cpus[0]}, {cpus[-1]}]) as engine:
        return compared(lambda: bare.run(names, feeds), lambda: engine(**feeds))


def submitted(path: Path, samples: list[Feeds]) -> Row:
    feeds = samples[0]

    async def awaited(count: int) -> list[int]:
        taken = []
        for _ in range(count):
            start = time.perf_counter_ns()
            await engine.submit(**feeds)
            taken.append(time.perf_counter_ns() - start)
        return taken

    with around(path, engines.bare(path)) as engine, asyncio.Runner() as runner:
        return compared(lambda: engine(**feeds), lambda runs: runner.run(awaited(runs)))


def written_anew(path: Path, samples: list[Feeds]) -> Row:
    bare, feeds = engines.bare(path), samples[0]
    names = outputs(bare)
    shapes = {n: a.shape for n, a in zip(names, bare.run(names, feeds), strict=True)}

    def new() -> Feeds:
        made = {n: np.empty(shape, np.float32) for n, shape in shapes.items()}
        binding = bare.io_binding()
        bind(binding, feeds, made)
        bare.run_with_iobinding(binding)
        return made

    return compared(lambda: bare.run(names, feeds), new)


def written_over(path: Path, samples: list[Feeds]) -> Row:
    bare, feeds = engines.bare(path), samples[0]
    names = outputs(bare)
    arrays = zip(names, bare.run(names, feeds), strict=True)
    kept = {n: np.empty(a.shape, np.float32) for n, a in arrays}
    binding = bare.io_binding()
    bind(binding, feeds, kept)
    return compared(lambda: bare.run(names, feeds), lambda: bare.run_with_iobinding(binding))


def shared(path: Path, samples: list[Feeds]) -> Row:
    bare, feeds = engines.bare(path), samples[0]
    names = outputs(bare)

    def run() -> list[np.ndarray]:
        given = {n: ort.OrtValue.ortvalue_from_numpy(array) for n, array in feeds.items()}
        return [np.from_dlpack(one) for one in bare.run_with_ort_values(names, given)]

    return compared(lambda: bare.run(names, feeds), run)


def batched(path: Path, samples: list[Feeds]) -> Row:
    with load_engine(path, on="cpu(threads=1)") as engine:
        engine.batch(samples)
        found = compared(lambda: [engine(**one) for one in samples], lambda: engine.batch(samples))
    share = found["second_ns"] / found["first_ns"]
    return {"samples": len(samples), **found, "share": round(share, 3)}


def grown(path: Path, samples: list[Feeds]) -> Row:
    own = psutil.Process()

    async def submits(count: int) -> None:
        for _ in range(count // 100):
            await asyncio.gather(*(engine.submit(**samples[n % len(samples)]) for n in range(100)))

    def megabytes(count: int) -> float:
        for number in range(4 * count // 5):
            engine(**samples[number % len(samples)])
        asyncio.run(submits(count // 5))
        return round(own.memory_info().rss / 1e6, 1)

    with load_engine(path, on="cpu(threads=1)") as engine:
        before, after = megabytes(CALLS // 10), megabytes(CALLS)
    return {"calls": CALLS, "before_mb": before, "after_mb": after}


# --- models -----------------------------------------------------------------------------------


def toys(*names: str) -> Iterator[Model]:
    """Yield name, file and inputs; the file is there until the next is asked for."""
    for name in names:
        text, weights, inputs = TOYS[name]
        rng = np.random.default_rng(0)
        proto = onnx.parser.parse_model(text)
        for key, shape in weights.items():
            values = rng.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(values, key))
        feeds = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in inputs.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(proto, path)
            yield name, path, [feeds]


def small() -> Iterator[Model]:
    return toys(*SMALL)


def quick() -> Iterator[Model]:
    """Yield the toys in which copies could be seen beside the computing."""
    return toys(*(name for name in TOYS if name != "1 input, 1 ms"))


def real() -> Iterator[Model]:
    for name in engines.NAMES:
        if engines.absent(name) is None:
            yield (name, *engines.model(name))


def joined() -> Iterator[Model]:
    """Yield the real models that have a free batch dimension."""
    return (one for one in real() if one[0] not in ("silero", "unet"))


def everything() -> Iterator[Model]:
    yield from small()
    yield from real()


def digits() -> Iterator[Model]:
    return islice(real(), 1)


ROWS: dict[str, tuple[Callable[[Path, list[Feeds]], Row], Callable[[], Iterator[Model]]]] = {
    "call": (called, everything),
    "bound": (bound, small),
    "submit": (submitted, small),
    "buffers, outputs new": (written_anew, quick),
    "buffers, outputs written over": (written_over, quick),
    "buffers, outputs shared": (shared, quick),
    "batch": (batched, joined),
    "memory": (grown, digits),
}


def around(
    path: Path, *sessions: ort.InferenceSession, cpus: list[set[int]] | None = None
) -> Engine:
    """Return an engine of sessions that are there."""
    with load_engine(path, on="cpu(threads=1)") as opened:
        signature = opened.signature
    instances = Instances("model", [OrtSession(one) for one in sessions], cpus or ())
    call = Call(instances, signature, Serving(len(sessions)))
    with ExitStack() as stack:
        stack.callback(call.close)
        return Engine({"": call}, Cpu(threads=1), stack.pop_all())


def outputs(session: ort.InferenceSession) -> list[str]:
    return [one.name for one in session.get_outputs()]


def bind(binding: Any, feeds: Feeds, made: Feeds) -> None:
    for names, add in ((feeds, binding.bind_input), (made, binding.bind_output)):
        for name, array in names.items():
            add(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


# --- timing -----------------------------------------------------------------------------------


def compared(
    first: Callable[[], object], second: Callable[[], object] | Callable[[int], list[int]]
) -> Row:
    """Take turns and summarize: medians, and the second's extra time with its interval.

    Args:
        second: A run, or a function that times so many runs itself.
    """
    itself = len(inspect.signature(second).parameters) == 1
    seconds = second if itself else (lambda runs: timed(second, runs))
    one = min(median(timed(first, 3)) for _ in range(3))
    runs = max(RUNS if one < SLOW_NS else 1, int(BLOCK_NS / one / 4))
    blocks = int(min(max(SECONDS * 1e9 / (4 * one * runs), BLOCKS[0]), BLOCKS[1]))
    turn(first, seconds, runs)
    pairs = np.array([turn(first, seconds, runs) for _ in range(blocks)])
    extra = pairs[:, 1] - pairs[:, 0]
    rng = np.random.default_rng(0)
    draws = np.median(extra[rng.integers(0, blocks, (2000, blocks))], axis=1)
    low, high = np.percentile(draws, (0.5, 99.5))
    spread = {"value": round(float(np.median(extra))), "low": round(low), "high": round(high)}
    first_ns, second_ns = (round(float(x)) for x in np.median(pairs, axis=0))
    return {
        "first_ns": first_ns,
        "second_ns": second_ns,
        "extra_ns": spread,
        "blocks": blocks,
        "runs_each": runs,
    }


def turn(
    first: Callable[[], object], seconds: Callable[[int], list[int]], runs: int
) -> tuple[float, float]:
    """Return nanoseconds a run of both, over one A B B A: a preempted run does not count."""
    one, two = median(timed(first, runs)), median(seconds(runs))
    three, four = median(seconds(runs)), median(timed(first, runs))
    return (one + four) / 2, (two + three) / 2


def timed(call: Callable[[], object], runs: int) -> list[int]:
    """Return the nanoseconds of each run."""
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return times


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
