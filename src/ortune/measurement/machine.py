"""What the machine is, and how far it can be trusted."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ortune.core.cpus import cpu_model, effective_cpus, instruction_sets

SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "i8mm",
    "bf16",
)
"""Instruction sets that decide which arithmetic is fast, in Linux' spelling."""

PACKAGES = (
    "ortune",
    "onnxruntime",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "numpy",
    "onnxruntime-ep-openvino",
    "openvino",
)


def machine() -> dict[str, str]:
    """Return what results depend on: CPU model, instruction sets, effective CPUs, system."""
    flags = instruction_sets()
    return {
        "cpu": cpu_model() or platform.processor() or platform.machine(),
        "instruction sets": " ".join(name for name in SETS if name in flags) or "unknown",
        "effective cpus": str(effective_cpus()),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def noise() -> Mapping[str, str]:
    """Return readings of load, governor, throttling and steal at this moment."""
    found: dict[str, str] = {}
    with suppress(OSError, AttributeError):
        found["load average"] = " ".join(f"{x:.2f}" for x in os.getloadavg())
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    found["frequency governor"] = governor or "not visible"
    for line in _read("/sys/fs/cgroup/cpu.stat").splitlines():
        if line.startswith("nr_throttled"):
            found["cgroup throttled periods"] = line.split()[1]
    for line in _read("/proc/stat").splitlines()[:1]:
        fields = line.split()
        total = sum(map(int, fields[1:9]))
        found["stolen CPU time since boot"] = f"{100 * int(fields[8]) / max(1, total):.2f} %"
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
