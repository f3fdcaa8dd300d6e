"""Plug-in execution providers: where their libraries are, and what devices they offer.

A library stays loaded for the life of a process. That it loads says nothing of devices: it may
offer none, and then a session without this check would run on the CPU.
"""

import ctypes
import importlib
import importlib.util
import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ortune.backends.runtimes import own_process
from ortune.core.capabilities import State
from ortune.core.errors import BackendMissing, BadSettings, summarize_error

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
        "from ortune.backends.runtimes.onnxruntime.providers import plug_in\n"
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
