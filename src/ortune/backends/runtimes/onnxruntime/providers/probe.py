"""Whether a provider of the installed onnxruntime starts here, asked in an own process."""

import ctypes
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import checks, messages, session
from ortune.core.capabilities import State
from ortune.core.errors import BadSettings

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

_ENVIRONMENT = "in an environment of its own, as two packages of onnxruntime overwrite each other"
_INSTALL: Mapping[str, str] = {
    CUDA: "`ortune doctor env add cuda`, or pip install 'onnxruntime-gpu[cuda,cudnn]' "
    f"{_ENVIRONMENT}",
    TENSORRT: "`ortune doctor env add tensorrt`, or pip install 'onnxruntime-gpu[cuda,cudnn]' "
    f"'tensorrt-cu13==10.16.*' {_ENVIRONMENT}",
}
"""Provider -> the exact line; the provider of the wheel for CUDA 13 links TensorRT 10."""
_NO_DEVICE = re.compile(
    r"libcuda\.so|nvcuda\.dll|no CUDA-capable device|invalid device ordinal|CUDA failure 100|"
    r"CUDA failure 101|no GPU|option \"device_id\"",
    re.IGNORECASE,
)
_TOY = bytes.fromhex(
    "08083a350a0e0a0178120179220452656c753a001201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a00100d"
)
"""A model of one Relu from x to y, float32[1]: onnx is not needed to write it."""
_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


@dataclass(frozen=True)
class ProbedProvider:
    """What became of an attempt to run a tiny model; `reason`: the runtime's, where it failed."""

    state: State
    reason: str = ""
    fix: str = ""


@cache
def probe_provider(provider: str, index: int = 0) -> ProbedProvider:
    """Try a provider in a process of its own: a broken library could end this one."""
    if provider not in session.list_providers():
        reason = f"the installed onnxruntime has no {provider}"
        return ProbedProvider("not installed", reason, _INSTALL[provider])
    code = (
        "import sys\n"
        "from ortune.backends.runtimes.onnxruntime.providers import probe\n"
        "probe.attempt(*sys.argv[1:])"
    )
    done = own_process.run_code(code, provider, str(index))
    if done is None:
        return ProbedProvider(
            "not loadable",
            f"{provider} does not run a tiny model within {own_process.LIMIT_S} s",
            "check the driver with `nvidia-smi`",
        )
    log = messages.RuntimeLog(done.stderr)
    answer = {"error": f"its process ends with exit code {done.returncode}", "driver": True}
    with suppress(ValueError, IndexError):
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    if not answer["error"]:
        return ProbedProvider("works")
    if not answer["driver"]:
        return ProbedProvider(
            "no device",
            "no NVIDIA driver is here (libcuda.so.1)",
            "run it on a machine with an NVIDIA GPU and its driver",
        )
    # The line that names the cause: a library that is not found, else the first.
    named = (line for line in log.real if "cannot open" in line or "not found" in line)
    cause = next(named, log.reason)
    reason = cause.partition("with error: ")[2] or cause or str(answer["error"])
    if _NO_DEVICE.search(reason):
        return ProbedProvider("no device", reason, "list the GPUs with `nvidia-smi`")
    return ProbedProvider(
        "not loadable", reason, f"pip install what is missing: {_INSTALL[provider]}"
    )


def attempt(provider: str, index: str) -> None:
    """Run a tiny model on a provider and print what became of it; the runtime's log is stderr."""
    answer: dict[str, object] = {"error": "", "driver": False}
    for name in _DRIVERS:
        with suppress(OSError):
            answer["driver"] = bool(ctypes.CDLL(name))
    try:
        import numpy as np
        import onnxruntime as ort

        preload_libraries(provider)
        options = {"device_id": index}
        chain = [(provider, options), *([(CUDA, options)] if provider == TENSORRT else [])]
        session_options = ort.SessionOptions()
        opened = ort.InferenceSession(_TOY, session_options, providers=chain, enable_fallback=0)
        opened.run(None, {"x": np.array([-1], np.float32)})
        if opened.get_providers()[0] != provider:
            answer["error"] = f"the session fell back to {opened.get_providers()[0]}"
    except Exception as error:
        reason = messages.strip_log_head(str(error).splitlines()[0])
        answer["error"] = reason or type(error).__name__
    sys.stdout.write(f"\n{json.dumps(answer)}\n")  # a line of its own: libraries print too


@cache
def preload_libraries(provider: str) -> None:
    """Load the libraries of NVIDIA's Python packages, which lie where no loader looks.

    GPUs are counted as ``nvidia-smi`` does, unless the caller's environment says otherwise.
    """
    import onnxruntime as ort

    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if hasattr(ort, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            ort.preload_dlls()
    if provider == TENSORRT:
        spec = importlib.util.find_spec("tensorrt_libs")
        places = (spec.submodule_search_locations if spec else None) or []
        ending = "*.dll" if sys.platform == "win32" else "*.so.10"
        paths = sorted(path for place in places for path in Path(place).glob(ending))
        # Those that others need come first.
        for name in ("nvinfer.", "nvinfer_10", "nvinfer_plugin", "nvonnxparser"):
            for path in [path for path in paths if name in path.name]:
                with suppress(OSError):
                    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def demand_provider_options(provider: str, names: Iterable[str]) -> None:
    """Refuse options that a provider of the installed onnxruntime does not know.

    Raises:
        BadSettings: One is not written in its library.
    """
    word = {CUDA: "providers_cuda", TENSORRT: "providers_tensorrt"}[provider]
    provider_libraries = [library for library in checks.list_libraries() if word in library.name]
    for name in names:
        if provider_libraries and not any(
            checks.has_word(library, name) for library in provider_libraries
        ):
            raise BadSettings(
                f"{provider} has no option '{name}'", fix="check its name, or leave it out"
            )
