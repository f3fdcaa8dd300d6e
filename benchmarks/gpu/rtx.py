"""TensorRT-RTX by its plug-in provider: whether it takes the card, how fast and how right it is.

    python -m benchmarks.gpu rtx

ResNet-50 in float32, float16 and int8 (Q/DQ pairs) beside CUDA and the CPU, with a CUDA graph and
with a cache of what it compiles, cold and warm; then ResNet-18 with an open batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import ortune as ot
from benchmarks.gpu import environment, models
from benchmarks.gpu.by_hand import RTX_MODULE
from benchmarks.gpu.levels import compute_snr
from benchmarks.gpu.steps import RTX, Target
from benchmarks.speed import shapes
from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.plugin import PluginProvider
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError

_RUNS = 100


def measure(target: Target) -> Iterator[tuple[str, Any]]:
    """Yield whether it starts, what tests say of it, and its rows."""
    if not find_spec(RTX_MODULE) and not target.dry:
        yield "missing", f"{RTX} is not installed"
        return
    plain: Backend = Cpu() if target.dry else PluginProvider(package=RTX)
    yield "missing", plain.missing()
    folder = shapes.write("lstm" if target.dry else "resnet50")
    model = folder / "model.onnx"
    feed = dict(np.load(next(iter(sorted((folder / "data").glob("*.npz"))))))
    files = {"fp32": model}
    for precision, given in (("fp16", {}), ("int8", {"data": str(folder / "calibration")})):
        out = target.work / f"{precision}.onnx"
        runs_on = "tensorrt" if precision == "int8" and not target.dry else target.convert_for
        try:
            ot.convert(model, out, precision=precision, target=runs_on, force=True, **given)  # type: ignore[arg-type]
            files[precision] = out
        except OrtuneError as error:
            yield f"{precision} file", f"{error.what}; fix: {error.fix}"
    with Cpu().open(model) as session:
        reference = list(session.run(feed).values())
    cache = target.work / "cache"
    cached = f"nv_runtime_cache_path={cache}"
    rows: list[tuple[str, str, Backend]] = [("fp32", "CUDA", target.backend())]
    rows.extend((precision, "TensorRT-RTX", plain) for precision in files)
    if not target.dry:
        graph = PluginProvider(package=RTX, options=("enable_cuda_graph=1",))
        kept = PluginProvider(package=RTX, options=(cached,))
        rows += [("fp16", "CUDA", Cuda()), ("fp16", "CUDA graph", Cuda(cuda_graph=True))]
        rows += [("fp16", "TensorRT-RTX, CUDA graph", graph)]
        rows += [("fp16", "TensorRT-RTX, cold cache", kept)]
        rows += [("fp16", "TensorRT-RTX, warm cache", kept)]
    for precision, way, backend in rows:
        if precision in files:
            key = f"{precision} {way}"
            yield key, _run_row(files[precision], backend, [feed], reference)
            print(key, flush=True)
    residual = models.write_residual(target.work)
    for rows_count in (1, 8, 3):
        feed = {"image": np.random.default_rng(1).random((rows_count, 3, 224, 224), np.float32)}
        with Cpu().open(residual) as session:
            reference = list(session.run(feed).values())
        yield f"open batch, {rows_count} rows", _run_row(residual, plain, [feed], reference)
    if not target.dry:
        yield "tests", dict(environment.run_tests("tests/gpu/test_plug_in.py"))


def _run_row(
    model: Path, backend: Backend, feeds: list[dict[str, Any]], reference: list[Any]
) -> dict[str, Any]:
    """Time a session that this process opens: load, first call and calls, copies included."""
    try:
        began = time.perf_counter()
        with backend.open(model) as session:
            loaded = time.perf_counter()
            outputs = list(session.run(feeds[0]).values())
            first = time.perf_counter()
            times = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                session.run(feeds[0])
                times.append(time.perf_counter() - start)
            placement = dict(session.placement())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {
        "load_s": loaded - began,
        "first_s": first - loaded,
        "median_ms": 1e3 * float(np.median(times)),
        "placement": placement,
        "snr_db": compute_snr(reference, outputs),
    }
