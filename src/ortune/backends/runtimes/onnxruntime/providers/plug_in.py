"""Plug-in execution providers: where their libraries are, and what devices they offer.

A library stays loaded for the life of a process. That it loads says nothing of devices: it may
offer none, and then a session without this check would run on the CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ortune.backends.runtimes import own_process
from ortune.core.capabilities import State
from ortune.core.errors import BackendMissing, BadSettings, gist

Kind: TypeAlias = Literal["any", "cpu", "gpu", "npu"]
"""A kind of device that a provider may offer."""

PREFIX = "onnxruntime-ep-"
"""How the distributions of plug-in providers are called."""
NO_DEVICE, NOT_LOADED = "offers no device", "does not load"
_SOME = f"pip install {PREFIX}webgpu, or another package of a plug-in provider"


@dataclass(frozen=True)
class PlugIn:
    """What is asked for: a package or a library, and which of its providers and devices.

    Attributes:
        package: A distribution whose module has ``get_library_path()`` and ``get_ep_name()``.
        library: The shared library's path, in the place of a package.
        provider: The execution provider; empty takes the package's, or the library's only one.
        device: The kind of device.
    """

    package: str = ""
    library: str = ""
    provider: str = ""
    device: Kind = "any"

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.package or self.library


def devices(asked: PlugIn) -> list[Any]:
    """Register the library, once in a process, and return its devices of the kind asked for.

    Raises:
        BackendMissing: It is not installed, does not load, or offers no such device.
        BadSettings: Neither or both of package and library are named, the library is not there,
            or offers several providers.
    """
    import onnxruntime as ort

    path, provider = _place(asked)
    brought = register(path, asked.label)
    provider = provider or _only(brought, asked)
    kind = (
        None if asked.device == "any" else getattr(ort.OrtHardwareDeviceType, asked.device.upper())
    )
    found = [one for one in ort.get_ep_devices() if one.ep_name == provider]
    fit = [one for one in found if kind in (None, one.device.type)]
    if not fit:
        kinds = ", ".join(dict.fromkeys(one.device.type.name for one in found))
        raise BackendMissing(
            f"{asked.label} {NO_DEVICE}{'' if kind is None else f' of kind {asked.device}'} here"
            + (f", only {kinds}" if kinds else ""),
            fix="check that the device and its driver are there"
            + ("" if kind is None or not found else ", or leave device out"),
        )
    return fit


_registered: dict[Path, tuple[str, ...]] = {}
"""Library -> providers that it brought. A second registration is refused by the runtime."""


def register(path: Path, label: str) -> tuple[str, ...]:
    """Register a library once; return the providers that its devices are of, in order.

    Raises:
        BackendMissing: It does not load.
    """
    import onnxruntime as ort

    path = path.resolve()
    if path not in _registered:
        before = {one.ep_name for one in ort.get_ep_devices()}
        try:
            ort.register_execution_provider_library(path.stem, str(path))
        except Exception as error:
            if "already registered" in str(error):  # by another reader of bundles in this process
                return ()
            raise BackendMissing(
                f"{label} {NOT_LOADED}: {gist(error)}",
                fix="install what the message names, or leave this backend out",
            ) from None
        names = [one.ep_name for one in ort.get_ep_devices() if one.ep_name not in before]
        _registered[path] = tuple(dict.fromkeys(names))
    return _registered[path]


@cache
def missing(asked: PlugIn) -> str | None:
    """Return what keeps a plug-in provider from working here and how to fix that, or None.

    Asked in a process of its own: a registration holds for the life of a process, and a broken
    library could end it.

    Raises:
        BadSettings: As `devices`, before anything is loaded.
    """
    if not asked.package and not asked.library:
        return f"no plug-in provider is named; {_SOME}"
    try:
        _place(asked)
    except BackendMissing as error:
        return f"{error.what}; {error.fix}"
    code = (
        "import json, sys\n"
        "from ortune.backends.runtimes.onnxruntime.providers import plug_in\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    plug_in.devices(plug_in.PlugIn(**json.loads(sys.argv[1])))\n"
        "except OrtuneError as error:\n    print(f'{error.what}; {error.fix}')"
    )
    return own_process.refusal(asked.label, code, json.dumps(asdict(asked)))


def state(missing: str | None) -> State:
    """Return in a word what a text of `missing`, or of a backend on top of it, says."""
    if missing is None:
        return "works"
    if NO_DEVICE in missing:
        return "no device"
    return "not loadable" if NOT_LOADED in missing else "not installed"


def installed(leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the installed distributions of plug-in providers, by their names alone."""
    found = (str(one.metadata["Name"] or "") for one in metadata.distributions())
    names = {_plain(name) for name in found}
    return tuple(
        sorted(name for name in names if name.startswith(PREFIX) and name not in leave_out)
    )


def _place(asked: PlugIn) -> tuple[Path, str]:
    """Return the library and, where the package says it or a person did, the provider."""
    if bool(asked.package) == bool(asked.library):
        raise BadSettings(
            "a plug-in provider comes from a package or from a library, and "
            f"{'both' if asked.package else 'neither'} is named",
            fix=f"write plugin(package={PREFIX}webgpu), or plugin(library=/path/to/it.so)",
        )
    if asked.library:
        path = Path(asked.library)
        if not path.is_file():
            raise BadSettings(f"no library '{asked.library}'", fix="correct its path")
        return path, asked.provider
    name = _module(asked.package)
    if not name:
        raise BackendMissing(
            f"{asked.package} is not installed", fix=f"pip install {asked.package}"
        )
    module = importlib.import_module(name)
    try:
        return Path(module.get_library_path()), asked.provider or str(module.get_ep_name())
    except AttributeError:
        raise BadSettings(
            f"{asked.package} is no package of a plug-in provider: it has no get_library_path()",
            fix="name one that has, or give its library",
        ) from None
    except (OSError, RuntimeError) as error:
        raise BackendMissing(
            f"{asked.package} {NOT_LOADED}: {gist(error)}",
            fix=f"pip install --force-reinstall {asked.package}",
        ) from None


def _module(package: str) -> str:
    """Return the module of a distribution; empty where it is not installed.

    A distribution may have words that its module lacks, such as ``-cu13``.
    """
    plain = package.replace("-", "_")
    with suppress(ImportError, ValueError):
        if plain.isidentifier() and importlib.util.find_spec(plain):
            return plain
    held = metadata.packages_distributions()
    fit = (name for name, some in held.items() if _plain(package) in map(_plain, some))
    return next(fit, "")


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _only(brought: Iterable[str], asked: PlugIn) -> str:
    """Return the one provider that a library brought; empty where it offers nothing."""
    names = list(brought)
    if len(names) > 1:
        raise BadSettings(
            f"{asked.label} has several providers: {', '.join(names)}",
            fix=f"choose one, such as plugin(library=..., provider={names[0]})",
        )
    return names[0] if names else ""
