"""What an environment for GPUs wants of the driver, and what a machine with a GPU lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortune.core.capabilities import HERE
from ortune.core.hardware.gpu import Gpu
from ortune.measurement.environments.installed import Environment

OLDEST: Mapping[str, int] = {"13": 580, "12": 525}
"""CUDA -> the first branch of the driver that runs it (NVIDIA, CUDA compatibility)."""
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.")


@dataclass(frozen=True)
class GpuProblem:
    """What keeps a GPU from being used, and the line that mends it.

    Attributes:
        environment: Where; this Python's own is ``here``.
    """

    environment: str
    what: str
    fix: str


def cuda(distributions: Sequence[str]) -> str:
    """Return the major version of the CUDA that pinned distributions bring; empty without one."""
    return next((found[1] for one in distributions if (found := _RUNTIME.match(one))), "")


def problems(
    boards: Sequence[Gpu],
    driver: Mapping[str, str],
    installed: Sequence[Environment],
    runtimes: Mapping[str, str],
) -> tuple[GpuProblem, ...]:
    """Return what is missing between a GPU and the environments of this machine.

    Args:
        driver: As `core.hardware.gpu.driver`.
        installed: All environments of this machine.
        runtimes: Distributions of onnxruntime here, each to its version.
    """
    wanting = {one.name: cuda(one.distributions) for one in installed}
    wanting = {name: major for name, major in wanting.items() if major}
    if not boards:
        what = "no NVIDIA driver tells of a GPU: CUDA and TensorRT have no device"
        fix = "install NVIDIA's driver; `nvidia-smi` lists the GPUs that it sees"
        return tuple(GpuProblem(name, what, fix) for name in wanting)
    if not wanting and "onnxruntime-gpu" not in runtimes:
        what = f"nothing here computes on the {boards[0].name}"
        return (GpuProblem(HERE, what, f"ortune env add {_fitting(driver)}"),)
    version = driver.get("driver", "")
    return tuple(
        GpuProblem(
            name,
            f"driver {version} is too old for CUDA {major}, which wants {OLDEST[major]} or later",
            f"update the driver, or `ortune env add {_fitting(driver)}`",
        )
        for name, major in wanting.items()
        if _branch(version) < OLDEST.get(major, 0)
    )


def _fitting(driver: Mapping[str, str]) -> str:
    """Return the release of the table for a driver."""
    return "cuda" if _branch(driver.get("driver", "")) >= OLDEST["13"] else "cuda==1.26.0"


def _branch(version: str) -> int:
    """Return the branch of a driver: its first number."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
