"""GPUs are read by NVML or nvidia-smi: here from scripted ones, there is no GPU."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ortune.core.hardware import gpu
from ortune.core.hardware.gpu import Gpu

ROWS = """\
0, NVIDIA H200, GPU-1a2b, 9.0, 143771, 1, 345, 1980, 3201, 77.12, 700.00, 29, 580.95.05
1, NVIDIA H200, GPU-3c4d, 9.0, 143771, 512, [N/A], 1980, 3201, [N/A], 700.00, 31, 580.95.05
"""
HEAD = "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0     |"
FIRST = Gpu(
    0,
    "NVIDIA H200",
    "GPU-1a2b",
    "9.0",
    memory=143771 * 1024**2,
    memory_used=1024**2,
    sm_mhz=345,
    sm_mhz_max=1980,
    memory_mhz=3201,
    watts=77.12,
    watts_limit=700.0,
    celsius=29,
)
needs_scripts = pytest.mark.skipif(os.name == "nt", reason="scripts nvidia-smi by a shell script")


class NvmlError(Exception):
    """In the place of pynvml's own."""


def scripted_nvml(*, broken: bool = False) -> ModuleType:
    """Return a script in the place of pynvml: one board that does not tell its power."""
    module, answers = ModuleType("pynvml"), SimpleNamespace(open=False)

    def begin() -> None:
        if broken:
            raise NvmlError("NVML Shared Library Not Found")
        answers.open = True

    def end() -> None:
        answers.open = False

    def unsupported(_: int) -> None:
        raise NvmlError("Not Supported")

    vars(module).update(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        NVMLError=NvmlError,
        answers=answers,
        nvmlInit=begin,
        nvmlShutdown=end,
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13020,
        nvmlSystemGetDriverVersion=lambda: b"595.10",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "NVIDIA L4",
        nvmlDeviceGetUUID=lambda _: "GPU-5e6f",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24 * 1024**3, used=1024),
        nvmlDeviceGetCudaComputeCapability=lambda _: (8, 9),
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 72_000,
        nvmlDeviceGetClockInfo=lambda _, kind: {1: 210, 2: 405}[kind],
        nvmlDeviceGetMaxClockInfo=lambda _, kind: {1: 2040}[kind],
        nvmlDeviceGetTemperature=lambda _, kind: {0: 40}[kind],
    )
    return module


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@needs_scripts
@pytest.mark.usefixtures("no_nvml")
def test_nvidia_smi_tells_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"if [ $# = 0 ]; then echo '{HEAD}'; else printf '%s' '{ROWS}'; fi"
    script(tmp_path, monkeypatch, body)
    first, second = gpu.list_gpus()
    assert first == FIRST
    assert (second.index, second.sm_mhz, second.watts) == (1, None, None)
    told = gpu.read_driver_versions()
    assert (told["driver"], told["driver cuda"]) == ("580.95.05", "13.0")


@needs_scripts
@pytest.mark.usefixtures("no_nvml")
@pytest.mark.parametrize(
    "body", ["exit 9", "echo 'No devices were found'", "echo 'NVIDIA-SMI has failed'; exit 1"]
)
def test_a_tool_without_a_driver_is_no_gpu(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, monkeypatch, body)
    assert gpu.list_gpus() == ()
    assert "driver" not in gpu.read_driver_versions()


@pytest.mark.usefixtures("no_nvml")
def test_without_a_tool_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.list_gpus() == ()


def test_nvml_is_asked_first_and_a_reading_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = scripted_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (found,) = gpu.list_gpus()
    assert (found.name, found.compute_capability) == ("NVIDIA L4", "8.9")
    assert (found.memory, found.memory_used) == (24 * 1024**3, 1024)
    assert (found.watts, found.watts_limit) == (None, 72.0)
    assert (found.sm_mhz, found.sm_mhz_max, found.memory_mhz) == (210, 2040, 405)
    assert not vars(nvml)["answers"].open
    told = gpu.read_driver_versions()
    assert (told["driver"], told["driver cuda"]) == ("595.10", "13.2")


def test_nvml_without_a_driver_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", scripted_nvml(broken=True))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.list_gpus() == ()


def test_libraries_of_the_system_are_known_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack(distribution: str) -> str:
        raise PackageNotFoundError(distribution)

    # A build of torch for CUDA brings packages of its own, which come first.
    monkeypatch.setattr(gpu, "version", lack)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for name in ("libcudnn.so.9", "libcudnn.so.9.2.1", "libcudnn.so.9.14.0", "libnvinfer.so.x"):
        (tmp_path / name).touch()
    found = gpu.read_library_versions([str(tmp_path / "none"), str(tmp_path)])
    assert found.get("cudnn") == "9.14.0"
    assert "tensorrt" not in found
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert gpu.read_library_versions([]) == found
