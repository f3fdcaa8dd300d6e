"""Whether a provider starts here, asked in an own process; plug-ins and their devices.

A library stays loaded for the life of a process. That it loads says nothing of devices: it may
offer none, and then a session without this check would run on the CPU.
"""

import ctypes
import importlib
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import checks, messages, session
from ortune.core.capabilities import State
from ortune.core.errors import BackendMissing, BadSettings, summarize_error

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
        "from ortune.backends.runtimes.onnxruntime import plug_in\n"
        "plug_in.attempt(*sys.argv[1:])"
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


def explain_failed_probe(provider: str, index: int) -> str | None:
    """Return why a provider does not start here and what to do; None where it works."""
    probed = probe_provider(provider, index)
    return None if probed.state == "works" else f"{probed.reason}; {probed.fix}"


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

    Raises BadSettings: one is not written in its library.
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


Kind: TypeAlias = Literal["any", "cpu", "gpu", "npu"]
"""A kind of device that a provider may offer."""

PREFIX = "onnxruntime-ep-"
"""How the distributions of plug-in providers are called."""
NO_DEVICE, NOT_LOADED = "offers no device", "does not load"
_CUDA_RUNTIME = "libcudart.so"
_NO_CARDS = (
    "run it where the kernel lists the card: onnxruntime looks for a plug-in's devices in "
    "/sys/class/drm and /sys/bus/pci, which a container may lack; cuda does without"
)
_NOT_ITS_DEVICE = (
    "check that its driver is there and that the provider takes this device (TensorRT-RTX takes "
    "compute capabilities 8.6, 8.9 and from 12.0 on: no data-centre GPU of 8.0 or 9.0)"
)
_DISPLAYS = "0x03"
"""How the class of a graphics card begins, by the PCI specification."""
_INSTALL_HINT = f"pip install {PREFIX}webgpu, or another package of a plug-in provider"


@dataclass(frozen=True)
class PlugIn:
    """What is asked for: a package or a library, and which of its providers and devices."""

    # A distribution whose module has ``get_library_path()`` and ``get_ep_name()``.
    package: str = ""
    library: str = ""  # the shared library's path, in the place of a package
    # The execution provider; empty takes the package's, or the library's only one.
    provider: str = ""
    device: Kind = "any"  # the kind of device

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.package or self.library


def list_plug_in_devices(request: PlugIn) -> list[Any]:
    """Register the library, once in a process, and return its devices of the kind asked for.

    Raises:
        BackendMissing: It is not installed, does not load, or offers no such device.
        BadSettings: Neither or both of package and library are named, the library is not there,
            or offers several providers.
    """
    import onnxruntime as ort

    path, provider = _locate_library(request)
    brought = register_library(path, request.label)
    if not provider:
        if len(brought) > 1:
            raise BadSettings(
                f"{request.label} has several providers: {', '.join(brought)}",
                fix=f"choose one, such as plugin(library=..., provider={brought[0]})",
            )
        provider = brought[0] if brought else ""
    kind = None
    if request.device != "any":
        kind = getattr(ort.OrtHardwareDeviceType, request.device.upper())
    provider_devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    fit = [device for device in provider_devices if kind in (None, device.device.type)]
    if not fit:
        kinds = ", ".join(dict.fromkeys(device.device.type.name for device in provider_devices))
        raise BackendMissing(
            f"{request.label} {NO_DEVICE}{'' if kind is None else f' of kind {request.device}'} "
            "here" + (f", only {kinds}" if kinds else ""),
            fix=(_NOT_ITS_DEVICE if _has_cards() else _NO_CARDS)
            + ("" if kind is None or not provider_devices else ", or leave device out"),
        )
    return fit


def _has_cards() -> bool:
    """Whether the kernel lists a graphics card where onnxruntime looks for a plug-in's devices."""
    if not sys.platform.startswith("linux") or any(Path("/sys/class/drm").glob("card*")):
        return True
    classes = Path("/sys/bus/pci/devices").glob("*/class")
    return any(path.read_text().startswith(_DISPLAYS) for path in classes)


_registered: dict[Path, tuple[str, ...]] = {}
"""Library -> providers that it brought. A second registration is refused by the runtime."""


def register_library(path: Path, label: str) -> tuple[str, ...]:
    """Register a library once; return the providers that its devices are of, in order.

    Raises:
        BackendMissing: It does not load.
    """
    import onnxruntime as ort

    path = path.resolve()
    if path not in _registered:
        before = {device.ep_name for device in ort.get_ep_devices()}
        try:
            try:
                ort.register_execution_provider_library(path.stem, str(path))
            except Exception as error:
                if _CUDA_RUNTIME not in str(error):
                    raise
                _load_cuda_runtime(path.parent)
                ort.register_execution_provider_library(path.stem, str(path))
        except Exception as error:
            if "already registered" in str(error):  # by another reader of bundles in this process
                return ()
            raise BackendMissing(
                f"{label} {NOT_LOADED}: {summarize_error(error)}",
                fix="install what the message names, or leave this backend out",
            ) from None
        names = [device.ep_name for device in ort.get_ep_devices() if device.ep_name not in before]
        _registered[path] = tuple(dict.fromkeys(names))
    return _registered[path]


def _load_cuda_runtime(folder: Path) -> None:
    """Load CUDA's runtime from a plug-in's own folder, else from NVIDIA's Python packages.

    The package of TensorRT-RTX brings it under its full version alone, where no loader looks.
    """
    import onnxruntime as ort

    for path in sorted(folder.glob(f"{_CUDA_RUNTIME}.*")):
        with suppress(OSError):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
    with redirect_stdout(io.StringIO()):  # it prints what it does not find
        ort.preload_dlls(cudnn=False)


@cache
def explain_missing_provider(request: PlugIn) -> str | None:
    """Return what keeps a plug-in provider from working here and how to fix that, or None.

    Asked in a process of its own: a registration holds for the life of a process, and a broken
    library could end it.

    Raises:
        BadSettings: As `list_plug_in_devices`, before anything is loaded.
    """
    if not request.package and not request.library:
        return f"no plug-in provider is named; {_INSTALL_HINT}"
    try:
        _locate_library(request)
    except BackendMissing as error:
        return f"{error.what}; {error.fix}"
    code = (
        "import json, sys\n"
        "from ortune.backends.runtimes.onnxruntime import plug_in\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    plug_in.list_plug_in_devices(plug_in.PlugIn(**json.loads(sys.argv[1])))\n"
        "except OrtuneError as error:\n    print(f'{error.what}; {error.fix}')"
    )
    return own_process.find_load_failure(request.label, code, json.dumps(asdict(request)))


def classify_state(missing: str | None) -> State:
    """Classify the text of `explain_missing_provider`, or of a backend on top of it."""
    if missing is None:
        return "works"
    if NO_DEVICE in missing:
        return "no device"
    return "not loadable" if NOT_LOADED in missing else "not installed"


def list_installed_plug_ins(leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the installed distributions of plug-in providers, by their names alone."""
    names = {_normalize_name(str(d.metadata["Name"] or "")) for d in metadata.distributions()}
    return tuple(sorted(n for n in names if n.startswith(PREFIX) and n not in leave_out))


def _locate_library(request: PlugIn) -> tuple[Path, str]:
    """Return the library and, where the package says it or a person did, the provider."""
    if bool(request.package) == bool(request.library):
        raise BadSettings(
            "a plug-in provider comes from a package or from a library, and "
            f"{'both' if request.package else 'neither'} is named",
            fix=f"write plugin(package={PREFIX}webgpu), or plugin(library=/path/to/it.so)",
        )
    if request.library:
        path = Path(request.library)
        if not path.is_file():
            raise BadSettings(f"no library '{request.library}'", fix="correct its path")
        return path, request.provider
    name = _find_module(request.package)
    if not name:
        raise BackendMissing(
            f"{request.package} is not installed", fix=f"pip install {request.package}"
        )
    module = importlib.import_module(name)
    try:
        return Path(module.get_library_path()), request.provider or str(module.get_ep_name())
    except AttributeError:
        raise BadSettings(
            f"{request.package} is no package of a plug-in provider: it has no get_library_path()",
            fix="name one that has, or give its library",
        ) from None
    except (OSError, RuntimeError) as error:
        raise BackendMissing(
            f"{request.package} {NOT_LOADED}: {summarize_error(error)}",
            fix=f"pip install --force-reinstall {request.package}",
        ) from None


def _find_module(package: str) -> str:
    """Return the module of a distribution; empty where it is not installed.

    A distribution may have words that its module lacks, such as ``-cu13``.
    """
    plain = package.replace("-", "_")
    with suppress(ImportError, ValueError):
        if plain.isidentifier() and importlib.util.find_spec(plain):
            return plain
    distributions_by_module = metadata.packages_distributions()
    fit = (
        name
        for name, distributions in distributions_by_module.items()
        if _normalize_name(package) in map(_normalize_name, distributions)
    )
    return next(fit, "")


def _normalize_name(name: str) -> str:
    return name.lower().replace("_", "-")
