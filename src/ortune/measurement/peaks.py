"""What this machine can do at most, measured in the runtime's own kernels.

Peak arithmetic is a large matrix product; bandwidth an element-wise kernel from one tensor to
another, both far larger than the caches; overhead what one more tiny kernel adds to a chain.
Bytes are counted as the kernel needs them: N read and N written for a copy of N bytes. A write
also fetches its cache line first (write-allocate) unless the kernel streams past the cache; that
traffic is not counted, so a kernel that only reads is faster than a copy and has its own ceiling.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import onnx
import psutil
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.profile import Ceilings
from ortune.core.temporary_folder import open_temporary_folder
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once

SECONDS = 1.6
_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_TYPICAL = 16 * 2**20  # bytes of last-level cache where the system does not tell
_LEAST_MEMORY, _MOST_MEMORY = 64 * 2**20, 512 * 2**20
_LEAST_CACHE, _MOST_CACHE = 2**18, 4 * 2**20
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


_OPSET, _IR = 17, 9
FEW, MANY = 8, 264  # kernels of the two chains whose difference is the overhead of a kernel
_SIDES = (512, 768)
_INT8 = (512, 1024, 1024)
_ROW = 1024


@dataclass(frozen=True)
class PeakModel:
    """One model and what a run of it does at least.

    Attributes:
        shape: Of its only input, ``x``, in float32.
        size: Bytes read and written a run.
    """

    shape: tuple[int, ...]
    flops: int = 0
    size: int = 0


_Weights: TypeAlias = Mapping[str, NDArray[Any]]
_Model: TypeAlias = tuple[PeakModel, list[onnx.NodeProto], _Weights]


def measure_ceilings(backend: Backend, seconds: float = SECONDS) -> Ceilings:
    """Measure the ceilings of a backend with its threads, in a worker; about twice `seconds`.

    Every figure is the best of interleaved rounds: a ceiling is what can be reached, and whatever
    else runs only lowers it. `Ceilings.spread` says by how much the rounds were above the best.

    Raises:
        OrtuneError: The backend does not run the models.
    """
    cache = last_level_cache()
    with open_temporary_folder() as name:
        folder = Path(name)
        cached = max(_LEAST_CACHE, min(cache // 8, _MOST_CACHE)) // 4096 * 4096
        room = min(4 * cache, _MOST_MEMORY, psutil.virtual_memory().available // 8)
        memory = max(_LEAST_MEMORY // 4, room) // 4096 * 4096
        models = write_peak_models(folder, memory, cached)
        plain = backend
        if isinstance(plain, Cpu):  # nothing may keep the models from running as written
            plain = replace(plain, disable=(), level="all", arena_growth="as-requested")
        job = WorkerJob(
            models={name: folder / f"{name}.onnx" for name in models},
            backend=plain,
            feeds={},
            out=folder / "worker",
        )
        inputs = {name: model.shape for name, model in models.items()}
        try:
            answer = ask_once(job, ("peaks", {"inputs": inputs, "seconds": seconds}))[0]
        except WorkerFailed as error:
            raise OrtuneError(
                f"the ceilings of {backend} cannot be measured: {error.failure.reason}",
                fix="profile without them, or check the backend with `ortune doctor`",
            ) from None
    return compute_ceilings(backend, models, answer["least_ns"], cache)


def compute_ceilings(
    backend: Backend,
    models: Mapping[str, PeakModel],
    least_ns: Mapping[str, Sequence[int]],
    cache: int,
) -> Ceilings:
    """Turn the least times of a run, by name and a round each, into ceilings."""
    best = {name: float(min(times)) for name, times in least_ns.items()}
    overhead = max(1.0, (best["many"] - best["few"]) / (MANY - FEW))
    call = max(0.0, best["few"] - FEW * overhead)
    net = {name: max(0.5 * duration, duration - call) for name, duration in best.items()}

    def rate(name: str) -> float:
        return 1e9 * models[name].size / net[name]

    floats = [name for name in models if name.startswith("float")]
    top = max(floats, key=lambda name: models[name].flops / net[name])
    kind = _DTYPES.get(str(getattr(backend, "precision", "f32")), "float32")
    shown = {kind: top, "int8": "int8"}
    named = {"bandwidth": "memory-copy", "read_bandwidth": "memory-read", "overhead_ns": "many"}
    named |= {"cache_bandwidth": "cache-copy", **shown}
    return Ceilings(
        {key: 1e9 * models[name].flops / net[name] for key, name in shown.items()},
        rate("memory-copy"),
        overhead,
        backend.threads or effective_cpus(),
        read_bandwidth=max(rate("memory-read"), rate("memory-copy")),
        cache_bandwidth=max(rate("cache-copy"), rate("cache-read"), rate("memory-copy")),
        cache_bytes=cache,
        spread={key: median(least_ns[name]) / best[name] - 1 for key, name in named.items()},
    )


def last_level_cache(folder: Path = _CPU) -> int:
    """Return the bytes of the largest cache of the first CPU, 16 MiB where that is unknown."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    cache_sizes = []
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text().strip()
            cache_sizes.append(int(text.rstrip("KMG")) * units.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(cache_sizes, default=_TYPICAL)


def write_peak_models(folder: Path, memory: int, cache: int) -> dict[str, PeakModel]:
    """Write the models to ``folder/NAME.onnx``; all give small outputs.

    A runtime may copy what it returns: that time must not count. No cache holds a tensor of
    `memory` bytes, and the last-level cache several of `cache` bytes.
    """
    peak_models: dict[str, _Model] = {}
    for side in _SIDES:
        product = [_make_node("MatMul", "x w", "y"), _make_reduce_max("y")]
        weight = {"w": _random_weights(side, side)}
        peak_models[f"float{side}"] = PeakModel((side, side), 2 * side**3), product, weight
    rows, deep, columns = _INT8  # u8 by s8 as runtimes take it: Q/DQ pairs around a float product
    quantized = [
        _make_node("QuantizeLinear", "x scale zero", "q"),
        _make_node("DequantizeLinear", "q scale zero", "left"),
        _make_node("DequantizeLinear", "w scale none", "right"),
        _make_node("MatMul", "left right", "y"),
        _make_reduce_max("y"),
    ]
    grid: dict[str, NDArray[Any]] = {
        "w": np.clip(_random_weights(deep, columns) * 20, -63, 63).astype(np.int8),
        "scale": np.array(0.01, np.float32),
        "zero": np.array(128, np.uint8),
        "none": np.array(0, np.int8),
    }
    peak_models["int8"] = PeakModel((rows, deep), 2 * rows * deep * columns), quantized, grid
    for name, size in (("memory", memory), ("cache", cache)):
        rows = size // 4 // _ROW
        # Relu reads and writes everything; of what it writes the first row is returned.
        copy = [_make_node("Relu", "x", "r"), _make_node("Slice", "r begin end begin", "y")]
        ends = {"begin": np.array([0]), "end": np.array([1])}
        peak_models[f"{name}-copy"] = PeakModel((rows, _ROW), 0, 8 * rows * _ROW), copy, ends
        peak_models[f"{name}-read"] = (
            PeakModel((rows, _ROW), 0, 4 * rows * _ROW),
            [_make_reduce_max("x")],
            {},
        )
    peak_models |= {"few": _make_chain(FEW), "many": _make_chain(MANY)}
    info = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    for name, (model, nodes, weights) in peak_models.items():
        inputs, output = [info("x", shape=model.shape)], nodes[-1].output[0]
        initializers = [numpy_helper.from_array(array, key) for key, array in weights.items()]
        outputs = [info(output, shape=[None, None])]
        graph = helper.make_graph(nodes, "peak", inputs, outputs, initializers)
        imports = [helper.make_opsetid("", _OPSET)]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=_IR)
        onnx.save(proto, folder / f"{name}.onnx")
    return {name: model for name, (model, _, _) in peak_models.items()}


def _make_chain(count: int) -> _Model:
    """Softmax, as no runtime merges two of them."""
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    nodes = [_make_node("Softmax", a, b) for a, b in itertools.pairwise(names)]
    return PeakModel((1, 8)), nodes, {}


def _make_node(op: str, inputs: str, output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output])


def _make_reduce_max(name: str) -> onnx.NodeProto:
    return helper.make_node("ReduceMax", [name], ["max"], axes=[1])


def _random_weights(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
