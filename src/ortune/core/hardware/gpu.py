"""NVIDIA GPUs as their driver tells: names, memory, clocks, power, and its libraries.

By NVML where ``nvidia-ml-py`` is installed, else by ``nvidia-smi``, else nothing is known.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_LIMIT_S = 20
"""A driver that hangs is no driver."""
_FIELDS = (
    "index,name,uuid,compute_cap,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,"
    "power.draw,power.limit,temperature.gpu,driver_version"
)
"""Of ``nvidia-smi --help-query-gpu``: memory in MiB, clocks in MHz, power in W."""
_MIB = 1024**2
_VERSION = re.compile(r"\d+(\.\d+)*")
_CUDA = re.compile(r"CUDA(?: UMD)? Version *: *(\d+\.\d+)")
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "tensorrt": ("tensorrt-cu13-libs", "tensorrt-cu12-libs", "tensorrt-cu13", "tensorrt"),
}
_LIBRARIES: Mapping[str, str] = {
    "cuda": "libcudart.so",
    "cudnn": "libcudnn.so",
    "tensorrt": "libnvinfer.so",
}
_PLACES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
    *("/usr/local/cuda/lib64", "/usr/local/lib"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment; None is what its driver does not tell."""

    index: int  # the driver's own; CUDA counts alike with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` alone
    name: str
    uuid: str  # what ``CUDA_VISIBLE_DEVICES`` takes too
    compute_capability: str  # such as ``9.0``; engines of TensorRT are bound to it
    memory: int | None = None  # bytes in all
    memory_used: int | None = None  # bytes, of all processes together
    sm_mhz: int | None = None  # clock of its multiprocessors now
    sm_mhz_max: int | None = None  # the highest that they may have
    memory_mhz: int | None = None  # clock of its memory now
    watts: float | None = None  # drawn now
    watts_limit: float | None = None  # the most that it may draw
    celsius: int | None = None  # temperature now


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the driver sees, by its index; empty without one."""
    return _query_driver()[0]


def read_driver_versions() -> Mapping[str, str]:
    """Return versions by name, of what is found alone.

    ``driver``; ``driver cuda``, the newest CUDA that it runs; ``cuda``, ``cudnn``,
    ``tensorrt`` where Python packages of this environment or the system's usual folders have them.
    """
    return {**_query_driver()[1], **read_library_versions()}


def read_library_versions(places: Sequence[str] = _PLACES) -> Mapping[str, str]:
    """Return the versions of CUDA's runtime, cuDNN and TensorRT that are installed here.

    A package of this environment comes before what the system has; no library is loaded.
    """
    versions = {}
    for name, distributions in _DISTRIBUTIONS.items():
        release = ""
        for distribution in distributions:
            with suppress(PackageNotFoundError):
                release = release or version(distribution)
        if release := release or _find_library_version(_LIBRARIES[name], places):
            versions[name] = release
    return versions


def _find_library_version(library: str, places: Sequence[str]) -> str:
    """Return the longest version that the files of a library have in their names."""
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for place in (*filter(None, paths), *places):
        ends = (path.name.removeprefix(f"{library}.") for path in Path(place).glob(f"{library}.*"))
        versions = [tuple(map(int, end.split("."))) for end in ends if _VERSION.fullmatch(end)]
        if versions:
            longest = max(versions, key=lambda parts: (len(parts), parts))
            return ".".join(map(str, longest))
    return ""


def _query_driver() -> tuple[tuple[Gpu, ...], Mapping[str, str]]:
    try:
        return _query_nvml(import_module("pynvml"))
    except (ImportError, OSError):
        return _query_nvidia_smi()


def _query_nvml(nvml: Any) -> tuple[tuple[Gpu, ...], Mapping[str, str]]:
    """Ask NVML (NVIDIA Management Library, API reference), memory in bytes, power in mW."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise OSError(str(error)) from None
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        versions = {
            "driver": _decode_text(nvml.nvmlSystemGetDriverVersion()),
            "driver cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        return tuple(
            _read_board(nvml, index) for index in range(nvml.nvmlDeviceGetCount())
        ), versions
    except nvml.NVMLError as error:
        raise OSError(str(error)) from None
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read_board(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def query(name: str, *more: object) -> Any:
        """Return what a board tells; None where it knows no such reading."""
        try:
            return getattr(nvml, name)(handle, *more)
        except nvml.NVMLError:
            return None

    memory = query("nvmlDeviceGetMemoryInfo")
    major, minor = query("nvmlDeviceGetCudaComputeCapability") or (0, 0)
    power, most = query("nvmlDeviceGetPowerUsage"), query("nvmlDeviceGetEnforcedPowerLimit")
    return Gpu(
        index,
        _decode_text(nvml.nvmlDeviceGetName(handle)),
        _decode_text(nvml.nvmlDeviceGetUUID(handle)),
        f"{major}.{minor}",
        memory=memory and memory.total,
        memory_used=memory and memory.used,
        sm_mhz=query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        sm_mhz_max=query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        watts=None if power is None else power / 1000,
        watts_limit=None if most is None else most / 1000,
        celsius=query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
    )


def _decode_text(value: str | bytes) -> str:
    """Older releases of pynvml answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _query_nvidia_smi() -> tuple[tuple[Gpu, ...], Mapping[str, str]]:
    answer = _run_nvidia_smi("--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    rows = [row for row in rows if len(row) == _FIELDS.count(",") + 1 and row[0].isdigit()]
    if not rows:
        return (), {}
    versions = {"driver": rows[0][-1]}
    if match := _CUDA.search(_run_nvidia_smi()):
        versions["driver cuda"] = match[1]
    boards = []
    for index, name, uuid, capability, *cells in rows:
        total, used = (_parse_number(float, cell) for cell in cells[:2])
        sm_mhz, sm_mhz_max, memory_mhz = (_parse_number(int, cell) for cell in cells[2:5])
        board = Gpu(
            int(index),
            name,
            uuid,
            capability,
            memory=None if total is None else int(total * _MIB),
            memory_used=None if used is None else int(used * _MIB),
            sm_mhz=sm_mhz,
            sm_mhz_max=sm_mhz_max,
            memory_mhz=memory_mhz,
            watts=_parse_number(float, cells[5]),
            watts_limit=_parse_number(float, cells[6]),
            celsius=_parse_number(int, cells[7]),
        )
        boards.append(board)
    return tuple(boards), versions


def _parse_number(kind: Callable[[str], T], text: str) -> T | None:
    """Read a number; a board that has none writes ``[N/A]``."""
    with suppress(ValueError):
        return kind(text)
    return None


def _run_nvidia_smi(*options: str) -> str:
    """Return what ``nvidia-smi`` prints; empty without it, or where it finds no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        done = subprocess.run(
            [tool, *options],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
