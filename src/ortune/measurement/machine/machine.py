"""What the machine is."""

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from ortune.core.hardware import cpus
from ortune.core.version import __version__

_SETS = (
    "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16 amx_int8 amx_bf16 amx_fp16 asimddp "
    "i8mm bf16"
)
SETS = tuple(_SETS.split())
"""Instruction sets that decide which arithmetic is fast, in Linux' spelling."""

_PACKAGES = (
    "ortune onnxruntime onnx onnx-ir onnxscript numpy onnxruntime-ep-openvino openvino torch "
    "mlcommons-loadgen onnxruntime-gpu onnxruntime-directml onnxruntime-ep-webgpu "
    "onnxruntime-ep-nv-tensorrt-rtx-cu13 tensorrt-cu13-libs nvidia-cudnn-cu13 nvidia-cudnn-cu12 "
    "nvidia-cuda-runtime nvidia-cuda-runtime-cu12"
)
PACKAGES = tuple(_PACKAGES.split())


def describe_machine() -> dict[str, str]:
    """Return what results depend on: CPU model, instruction sets, effective CPUs, system.

    Where the CPU is emulated, by what too: times of it say nothing of a real one.
    """
    flags, emulator = cpus.instruction_sets(), cpus.find_emulator()
    return {
        "cpu": cpus.cpu_model() or platform.processor() or platform.machine(),
        "instruction sets": " ".join(name for name in SETS if name in flags) or "unknown",
        "effective cpus": str(cpus.effective_cpus()),
        "system": f"{platform.system()} {platform.machine()}",
        **({cpus.EMULATED: emulator} if emulator else {}),
    }


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on.

    In an environment of its own ortune is no installed package, but runs.
    """
    installed = {"python": platform.python_version(), "ortune": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed
