"""An engine of TensorRT through ortune beside trtexec, or beside a plain loop of its own API."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu import models as gpu_models
from benchmarks.gpu.steps import Target
from ortune.backends import tensorrt_engine
from ortune.backends.runtimes.tensorrt import library

_RUNS = 200
_TURNS = 5
_LIMIT_S = 60
_TRTEXEC_S = 3

Times = list[float]


def measure(target: Target) -> Iterator[tuple[str, Any]]:
    """Yield ResNet-18's and the digit classifier's engine beside trtexec."""
    if reason := library.explain_missing_tensorrt():
        yield "missing", reason
        return
    for model in (gpu_models.write_residual(target.work), digit_cnn_path()):
        yield model.stem, beside_trtexec(model, target.work)


def digit_cnn_path() -> Path:
    """Return the packaged model's file."""
    return Path(str(files("ortune.data.zoo") / "digit_cnn.onnx"))


def beside_trtexec(model: Path, root: Path) -> dict[str, Any]:
    """Build an engine of a model and time it both ways, in turns.

    Args:
        root: Receives the engine's file.

    Returns:
        Medians of device time in ns; ``ratio`` is ortune's over the other's.
    """
    feeds = gpu_models.samples(model)[0]
    options = library.BuildOptions(timing_cache=root, profiles=_profile(feeds, model))
    began = time.monotonic()
    plan = library.build_engine(model, options)
    took = time.monotonic() - began
    path = root / f"{model.stem}.engine"
    path.write_bytes(plan)
    told: dict[str, Any] = {"build_s": took, "size": len(plan)}
    mine: Times = []
    others: Times = []
    session = tensorrt_engine.TensorrtSession(plan, options)
    try:
        session.stage(feeds)
        told["end_to_end_ns"] = timed(lambda: session.run(feeds))
        with _plain(plan, feeds) as plain:
            for _ in range(_TURNS):
                mine.append(timed(session.compute))
                others.append(timed(plain))
    finally:
        session.close()
    told |= {"ortune_ns": median(mine), "python_ns": median(others)}
    told["ratio"] = told["ortune_ns"] / told["python_ns"]
    if trtexec := shutil.which("trtexec"):
        told["trtexec_ns"] = _trtexec(trtexec, path, feeds, root)
        told["ratio"] = told["ortune_ns"] / told["trtexec_ns"]
    return told


def timed(act: Callable[[], object]) -> float:
    """Return the median time of a call in ns."""
    for _ in range(_RUNS // 10):
        act()
    taken = []
    for _ in range(_RUNS):
        start = time.perf_counter_ns()
        act()
        taken.append(time.perf_counter_ns() - start)
    return median(taken)


def _profile(feeds: Mapping[str, NDArray[Any]], model: Path) -> tuple[str, ...]:
    """Return one range, for inputs with open sizes: exactly what is fed."""
    from ortune.graph.analysis.facts import read_facts
    from ortune.graph.io import file

    return tuple(
        f"{one.name}:{shape}..{shape}"
        for one in read_facts(file.load(model)).inputs
        if any(not isinstance(dim, int) for dim in one.shape or ())
        for shape in ("x".join(map(str, feeds[one.name].shape)),)
    )


@contextmanager
def _plain(plan: bytes, feeds: Mapping[str, NDArray[Any]]) -> Iterator[Callable[[], None]]:
    """Give one run of the engine by TensorRT's API alone, its buffers made before."""
    import tensorrt as trt
    from cuda.bindings import runtime as cuda

    def checked(answer: Any) -> Any:
        error, *values = answer
        if int(error):
            raise RuntimeError(f"CUDA: {error.name}")
        return values[0] if values else None

    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan)
    context, stream = engine.create_execution_context(), checked(cuda.cudaStreamCreate())
    host = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
    held = []
    for name, array in feeds.items():
        context.set_input_shape(name, array.shape)
    for place in range(engine.num_io_tensors):
        name = engine.get_tensor_name(place)
        size = int(np.prod(context.get_tensor_shape(name))) * 8  # no type is wider
        held.append(checked(cuda.cudaMalloc(size)))
        context.set_tensor_address(name, int(held[-1]))
        if name in feeds:
            array = np.ascontiguousarray(feeds[name])
            checked(cuda.cudaMemcpy(held[-1], array.ctypes.data, array.nbytes, host))

    def act() -> None:
        context.execute_async_v3(int(stream))
        checked(cuda.cudaStreamSynchronize(stream))

    try:
        yield act
    finally:
        for address in held:
            checked(cuda.cudaFree(address))
        checked(cuda.cudaStreamDestroy(stream))


def _trtexec(program: str, engine: Path, feeds: Mapping[str, NDArray[Any]], root: Path) -> float:
    """Return the median of trtexec's own times of computing, copies left out."""
    times = root / "times.json"
    shapes = ",".join(f"{k}:{'x'.join(map(str, one.shape))}" for k, one in feeds.items())
    command = [program, f"--loadEngine={engine}", f"--shapes={shapes}", "--noDataTransfers"]
    command += ["--useSpinWait", f"--duration={_TRTEXEC_S}", f"--exportTimes={times}"]
    subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT_S)
    return float(median(1e6 * one["computeMs"] for one in json.loads(times.read_text())))
