"""What a call of the engine costs beyond the bare session, measured in pairs; prints JSON.

Both sides run the very same onnxruntime session, so that its place in memory is no difference,
and take turns A B B A, so that clock changes hit both alike. Per model: median nanoseconds of
each, the difference with its 99 % bootstrap interval, and whether it is under 3 % or 20 us.

    python benchmarks/engine_overhead.py
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ortune.backends.cpu import Cpu
from ortune.engine.call import Call
from ortune.engine.load import Engine, load
from ortune.measurement.machine.machine import machine
from ortune.runtimes.onnxruntime.session import OrtSession

MODELS = {
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
}
BLOCKS, BLOCK_NS = 200, 4_000_000
LIMIT_NS, LIMIT_SHARE = 20_000, 0.03


def main() -> int:
    """Measure every model and print one JSON object; exit 1 when a limit is missed."""
    rows = [measure(name, *spec) for name, spec in MODELS.items()]
    packages = {name: version(name) for name in ("ortune", "onnxruntime", "numpy")}
    result = {"benchmark": "engine overhead", "machine": machine(), "rows": rows}
    print(json.dumps(result | {"versions": packages}, indent=1))
    return 0 if all(row["within"] for row in rows) else 1


def measure(
    name: str, text: str, weights: dict[str, tuple[int, ...]], inputs: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return one model's row."""
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(text)
    for key, shape in weights.items():
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, key))
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(proto, path)
        with load(path, on="cpu(threads=1)") as opened:
            signature = opened.signature
        bare = session(path)
        call = Call("model", OrtSession(bare), signature)
        with Engine({"": call}, Cpu(threads=1), ExitStack()) as engine:
            return row(name, lambda: bare.run(["y"], feeds), lambda: engine(**feeds))


def session(path: Path) -> ort.InferenceSession:
    """Open the model without the engine."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def row(name: str, bare: Callable[[], Any], engine: Callable[[], Any]) -> dict[str, Any]:
    """Take turns and summarize."""
    one = min(timed(bare, 20) for _ in range(5))
    runs = max(9, int(BLOCK_NS / one / 4))
    pairs = np.array([turn(bare, engine, runs) for _ in range(BLOCKS)])
    extra = pairs[:, 1] - pairs[:, 0]
    rng = np.random.default_rng(0)
    draws = np.median(extra[rng.integers(0, len(extra), (2000, len(extra)))], axis=1)
    low, high = np.percentile(draws, (0.5, 99.5))
    bare_ns, value = float(np.median(pairs[:, 0])), float(np.median(extra))
    return {
        "model": name,
        "bare_ns": round(bare_ns),
        "engine_ns": round(float(np.median(pairs[:, 1]))),
        "overhead_ns": {"value": round(value), "low": round(low), "high": round(high)},
        "overhead_share": round(value / bare_ns, 4),
        "within": bool(high <= LIMIT_NS or high / bare_ns <= LIMIT_SHARE),
        "blocks": len(pairs),
        "runs_each": runs,
    }


def turn(bare: Callable[[], Any], engine: Callable[[], Any], runs: int) -> tuple[float, float]:
    """Return nanoseconds a run of both, over one A B B A."""
    first, second = timed(bare, runs), timed(engine, runs)
    third, fourth = timed(engine, runs), timed(bare, runs)
    return (first + fourth) / 2, (second + third) / 2


def timed(call: Callable[[], Any], runs: int) -> float:
    """Return the median nanoseconds of a run: a preempted one does not count."""
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
