"""The releases that environments are made for: a table, every distribution to its version."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ortune.core.errors import BadSettings, shorten_text

_WORKER = ("numpy==2.4.6", "psutil==7.2.2", "ml_dtypes==0.6.0")
"""What a worker imports beside the runtime."""


NVIDIA_INDEX = "<address of NVIDIA package index>"
"""Where the wheels of TensorRT's libraries are; elsewhere is only a source that fetches them.
TensorRT's installation guide has the address: pip goes to none that the user has not given."""


@dataclass(frozen=True)
class Family:
    """The releases of one runtime.

    Attributes:
        short: What the names of its environments begin with.
        beside: Version -> distributions that are installed beside it and the worker's own.
        backends: What the environment is for, and checked with.
        distribution: Whose versions these are; without one the family's own word.
        usual: The version that its bare word stands for; without one the newest.
        index: A further package index that pip needs for it, as messages call it.
    """

    short: str
    beside: Mapping[str, tuple[str, ...]]
    backends: tuple[str, ...]
    distribution: str = ""
    usual: str = ""
    index: str = ""

    @property
    def default(self) -> str:
        """The version that the bare word stands for."""
        return self.usual or list(self.beside)[-1]


_TELEMETRY = "openvino-telemetry==2025.2.0"
_LATEST = ("onnxruntime==1.31.1", _TELEMETRY)
_NVML = "nvidia-ml-py==13.615.71"
_CUDA_13 = (
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cublas==13.1.0.3",
    "nvidia-cufft==12.0.0.61",
    "nvidia-curand==10.4.0.35",
    "nvidia-nvjitlink==13.0.88",
    "nvidia-cudnn-cu13==9.19.0.56",
    _NVML,
)
"""CUDA 13.0 with its cuDNN: what the wheels' ``cuda`` and ``cudnn`` extras allow from 1.27 on."""
_CUDA_12 = (
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cublas-cu12==12.9.1.4",
    "nvidia-cufft-cu12==11.4.1.4",
    "nvidia-curand-cu12==10.3.10.19",
    "nvidia-nvjitlink-cu12==12.9.86",
    "nvidia-cudnn-cu12==9.10.2.21",
    _NVML,
)
"""CUDA 12.9 with its cuDNN, for drivers before 580: the last wheel for CUDA 12 is of 1.26."""

_ORT = "1.23.2 1.24.4 1.25.1 1.26.0 1.27.0 1.28.0 1.29.0 1.30.0 1.31.0 1.31.1 1.32.0"

FAMILIES: Mapping[str, Family] = {
    "onnxruntime": Family(
        "ort",
        dict.fromkeys(_ORT.split(), ()),
        ("cpu",),
    ),
    "openvino": Family(
        "openvino",
        {
            "2026.2.1": (*_LATEST, "onnxruntime-ep-openvino==1.6.1"),
            # 1.7 asks onnxruntime for a function that was there on trial, and is gone since 1.31.
            "2026.3.0": ("onnxruntime==1.30.0", _TELEMETRY, "onnxruntime-ep-openvino==1.7.0"),
            "2026.4.1": (*_LATEST, "onnxruntime-ep-openvino==1.8.1"),
        },
        ("cpu", "openvino"),
    ),
    "cuda": Family(
        "cuda",
        {"1.26.0": _CUDA_12, "1.31.1": _CUDA_13},
        ("cpu", "cuda"),
        distribution="onnxruntime-gpu",
    ),
    "tensorrt": Family(
        "tensorrt",
        {
            "10.16.1.11": (
                *("onnxruntime-gpu==1.31.1", "tensorrt-cu13-bindings==10.16.1.11"),
                *_CUDA_13,
            )
        },
        ("cpu", "cuda", "tensorrt"),
        distribution="tensorrt-cu13-libs",
        index=NVIDIA_INDEX,
    ),
    "tensorrt-engine": Family(
        "tensorrt-engine",
        {
            "11.4.0.106": (
                *("onnxruntime==1.31.1", "tensorrt-cu13-bindings==11.4.0.106"),
                *("cuda-bindings==13.0.3", "cuda-pathfinder==1.9.0", *_CUDA_13),
            )
        },
        ("cpu", "tensorrt-engine"),
        distribution="tensorrt-cu13-libs",
        index=NVIDIA_INDEX,
    ),
    "rtx": Family(
        "rtx",
        {"0.5.0": ("onnxruntime==1.31.1", *_CUDA_13)},
        ("cpu", "plugin(package=onnxruntime-ep-nv-tensorrt-rtx-cu13, device=gpu)"),
        distribution="onnxruntime-ep-nv-tensorrt-rtx-cu13",
    ),
}
"""Word -> its releases, oldest first; of onnxruntime and OpenVINO the last of every minor version.

Nothing beyond this is installed: a release is tried with the same NumPy as every other. One
environment holds one wheel of onnxruntime, and the CUDA and cuDNN that it links:

- onnxruntime-gpu 1.31 was built with CUDA 13.0, 1.26 with CUDA 12; each takes any cuDNN 9.
- Its TensorRT provider links ``libnvinfer.so.10``: TensorRT 10.16 is beside it, and TensorRT 11,
  for engines that are built directly, in an environment of its own (``tensorrt-engine``).
- CUDA 13 needs a driver of 580 or later, CUDA 12 one of 525 (NVIDIA, CUDA compatibility).
"""


@dataclass(frozen=True)
class Release:
    """One release of a runtime."""

    package: str
    version: str

    @property
    def family(self) -> Family:
        """What it is a release of."""
        return FAMILIES[self.package]

    @property
    def name(self) -> str:
        """What its environment is called unless a person says otherwise."""
        return f"{self.family.short}-{self.version}"

    @property
    def distributions(self) -> tuple[str, ...]:
        """All that is installed, each to its version."""
        first = f"{self.family.distribution or self.package}=={self.version}"
        return (first, *_WORKER, *self.family.beside[self.version])

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


def parse_release(text: str) -> Release:
    """Read ``onnxruntime==1.24.4``, ``onnxruntime-gpu==1.31.1`` or a bare word such as ``cuda``.

    Of several families of one distribution it is the one that has the version.

    Raises:
        BadSettings: It is not in the table.
    """
    package, equals, version = (part.strip() for part in text.partition("=="))
    words = [package] if package in FAMILIES else []
    words = words or [word for word, family in FAMILIES.items() if family.distribution == package]
    if not words:
        raise BadSettings(
            f"'{shorten_text(text, 80)}' is no release that an environment can be made for",
            fix=f"write one such as {', '.join(FAMILIES)}, or onnxruntime==1.24.4",
        )
    having = (word for word in words if version in FAMILIES[word].beside)
    word = next(having, words[0])
    version = version if equals else FAMILIES[word].default
    if version not in FAMILIES[word].beside:
        raise BadSettings(
            f"no release '{shorten_text(version, 40)}' of {package} in the table",
            fix=f"use one of: {', '.join(FAMILIES[word].beside)}",
        )
    return Release(word, version)


def list_releases() -> tuple[Release, ...]:
    """Return all releases of the table."""
    return tuple(
        Release(name, version) for name, family in FAMILIES.items() for version in family.beside
    )


def select_releases(text: str, package: str = "onnxruntime") -> tuple[Release, ...]:
    """Return the releases of ``1.24..1.31``, ends included, or of ``1.24.4,1.31.1``, oldest first.

    ``1.31`` holds all that begin like that.

    Raises:
        BadSettings: The text is neither, or the table has none of them.
    """
    versions = list(FAMILIES[package].beside)
    first, dots, last = (part.strip() for part in text.partition(".."))
    if dots:
        low, high = _parse_version(first, text), _parse_version(last, text)
        parts = {version: _parse_version(version, version) for version in versions}
        matches = [
            version
            for version, numbers in parts.items()
            if numbers[: len(low)] >= low and numbers[: len(high)] <= high
        ]
        if not matches:
            raise BadSettings(
                f"no release of {package} in the table lies in '{shorten_text(text, 40)}'",
                fix=f"it has {', '.join(versions)}",
            )
        return tuple(Release(package, version) for version in matches)
    words = [word.strip() for word in text.split(",") if word.strip()]
    releases = {parse_release(f"{package}=={word}") for word in words}
    if not releases:
        raise BadSettings("no release is named", fix="write 1.24..1.31, or 1.24.4,1.31.1")
    return tuple(sorted(releases, key=lambda version: versions.index(version.version)))


def _parse_version(text: str, spelled: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", text):
        raise BadSettings(
            f"cannot read the releases '{shorten_text(spelled, 40)}'",
            fix="write 1.24..1.31, or 1.24.4,1.31.1",
        )
    return tuple(map(int, text.split(".")))
