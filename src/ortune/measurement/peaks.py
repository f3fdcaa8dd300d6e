"""What this machine can do at most, measured in the runtime's own kernels.

Peak arithmetic is a large matrix product; bandwidth an element-wise kernel from one tensor to
another, both far larger than the caches; overhead what one more tiny kernel adds to a chain.
Bytes are counted as the kernel needs them: N read and N written for a copy of N bytes. A write
also fetches its cache line first (write-allocate) unless the kernel streams past the cache; that
traffic is not counted, so a kernel that only reads is faster than a copy and has its own ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.profile import Ceilings
from ortune.measurement.job import WorkerJob
from ortune.measurement.peak_models import FEW, MANY, PeakModel, write
from ortune.measurement.process import WorkerFailed, ask_once

SECONDS = 1.6
_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_TYPICAL = 16 * 2**20
"""Bytes of last-level cache where the system does not tell."""
_LEAST_MEMORY, _MOST_MEMORY = 64 * 2**20, 512 * 2**20
_LEAST_CACHE, _MOST_CACHE = 2**18, 4 * 2**20
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def measure(backend: Backend, seconds: float = SECONDS) -> Ceilings:
    """Measure the ceilings of a backend with its threads, in a worker; about twice `seconds`.

    Every figure is the best of interleaved rounds: a ceiling is what can be reached, and whatever
    else runs only lowers it. `Ceilings.spread` says by how much the rounds were above the best.

    Raises:
        OrtuneError: The backend does not run the models.
    """
    cache = last_level_cache()
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        cached = max(_LEAST_CACHE, min(cache // 8, _MOST_CACHE)) // 4096 * 4096
        models = write(folder, _memory(cache), cached)
        plain = backend
        if isinstance(plain, Cpu):  # nothing may keep the models from running as written
            plain = replace(plain, disable=(), level="all")
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
    return ceilings(backend, models, answer["least_ns"], cache)


def ceilings(
    backend: Backend,
    models: Mapping[str, PeakModel],
    least_ns: Mapping[str, Sequence[int]],
    cache: int,
) -> Ceilings:
    """Turn the least times of the rounds into ceilings.

    Args:
        least_ns: Name -> least time of a run, a round each.
    """
    best = {name: float(min(found)) for name, found in least_ns.items()}
    overhead = max(1.0, (best["many"] - best["few"]) / (MANY - FEW))
    call = max(0.0, best["few"] - FEW * overhead)
    net = {name: max(0.5 * taken, taken - call) for name, taken in best.items()}

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
    found = []
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text().strip()
            found.append(int(text.rstrip("KMG")) * units.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(found, default=_TYPICAL)


def _memory(cache: int) -> int:
    """Return bytes of a tensor that is four times the cache, within an eighth of free memory."""
    room = psutil.virtual_memory().available // 8
    return max(_LEAST_MEMORY // 4, min(4 * cache, _MOST_MEMORY, room)) // 4096 * 4096
