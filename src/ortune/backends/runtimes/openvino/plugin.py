"""OpenVINO as a plug-in provider of stock onnxruntime.

It does not compile a graph that reads overridable initializers ("OpenVINO input has no ONNX
binding", plug-in 1.8): it is given the model with them as constants, which they are to ortune.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import compiled
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.backends.runtimes.onnxruntime import trace as ort_record
from ortune.backends.runtimes.onnxruntime.providers import plug_in
from ortune.backends.runtimes.openvino.native import DRIVERS
from ortune.core.errors import BackendMissing
from ortune.core.session import Recording, Session
from ortune.graph.io.protobuf import drop_initializer_inputs

PACKAGE = "onnxruntime-ep-openvino"
PROVIDER = "OpenVINOExecutionProvider"


def open_plugin_session(
    path: Path, threads: int, options: Mapping[str, str], *, verbose: bool, device: str = "CPU"
) -> AbstractContextManager[Session]:
    """Open a session; options go through ``load_config``, elsewhere they are ignored.

    Args:
        device: CPU, GPU or NPU.

    Raises:
        BackendMissing: The plug-in is not installed, offers no such device, or took no node.
    """
    session_options = _make_session_options(threads, options, verbose, device)
    return ort.open_session(
        path, session_options, provider=PROVIDER, content=drop_initializer_inputs(path)
    )


def open_plugin_recording(
    path: Path,
    threads: int,
    options: Mapping[str, str],
    folder: Path,
    *,
    verbose: bool,
    device: str = "CPU",
) -> AbstractContextManager[Recording]:
    """Open the same session with the profiler on; a graph of compiled nodes cannot be saved.

    Raises:
        BackendMissing: As `open_plugin_session`.
    """
    session_options = _make_session_options(threads, options, verbose, device)
    return ort_record.open_recording(
        path, session_options, folder, provider=PROVIDER, content=drop_initializer_inputs(path)
    )


def query_plugin_nodes(
    path: Path, threads: int, options: Mapping[str, str], device: str = "CPU"
) -> dict[str, tuple[str, ...]]:
    """Return provider -> names of the nodes it takes, onnxruntime's own rewriting off.

    Raises:
        BackendMissing: As `open_plugin_session`.
    """
    session_options = _make_session_options(
        threads, options, verbose=False, device=device, level="disabled"
    )
    with ort.open_session(
        path, session_options, provider=PROVIDER, content=drop_initializer_inputs(path)
    ) as opened:
        return opened.list_assigned_nodes()


def compile_ahead(
    path: Path, out: Path, threads: int, options: Mapping[str, str], device: str
) -> None:
    """Write a model as it is compiled for a device.

    Raises:
        BackendMissing: As `open_plugin_session`.
        BadModel: The plug-in does not compile it.
    """
    session_options = _make_session_options(threads, options, verbose=False, device=device)
    compiled.compile_model(
        path, session_options, out, PROVIDER, content=drop_initializer_inputs(path)
    )


def describe_plugin_build(device: str) -> dict[str, str]:
    """Return what `compile_ahead` compiles for: see `compiled.made_for`.

    Raises:
        BackendMissing: As `list_openvino_devices`.
    """
    return compiled.describe_build_environment(PROVIDER, list_openvino_devices(device)[0], PACKAGE)


def _make_session_options(
    threads: int, options: Mapping[str, str], verbose: bool, device: str, level: str = "all"
) -> Any:
    session_options = ort.make_session_options(threads, level, verbose=verbose)
    config = {"load_config": json.dumps({device: dict(options)})}
    session_options.add_provider_for_devices(list_openvino_devices(device)[:1], config)
    return session_options


def list_openvino_devices(device: str = "CPU") -> list[Any]:
    """Register the plug-in and return its devices of one kind.

    Args:
        device: In OpenVINO's spelling; AUTO is its own runtime's matter.

    Raises:
        BackendMissing: It is not installed, or offers none.
    """
    if device == "AUTO":
        raise BackendMissing("the plug-in is not asked for AUTO", fix="pip install openvino")
    try:
        import onnxruntime_ep_openvino as plugin
    except ImportError:
        raise BackendMissing(
            "the OpenVINO plug-in is not installed", fix=f"pip install {PACKAGE}"
        ) from None
    import onnxruntime

    plug_in.register_library(Path(plugin.get_library_path()), PACKAGE)
    kind = getattr(onnxruntime.OrtHardwareDeviceType, device)
    all_devices = onnxruntime.get_ep_devices()
    matches = [
        candidate
        for candidate in all_devices
        if candidate.ep_name == PROVIDER and candidate.device.type == kind
    ]
    if matches:
        return matches
    if device == "CPU":
        raise BackendMissing(
            "the installed OpenVINO plug-in takes Intel CPUs only (onnxruntime PR#31981)",
            fix="pip install openvino, the runtime without the plug-in",
        )
    raise BackendMissing(
        f"the installed OpenVINO plug-in {plug_in.NO_DEVICE} {device} here", fix=DRIVERS[device]
    )


@cache
def explain_missing_plugin(device: str = "CPU") -> str | None:
    """Return what keeps the plug-in from a device here and how to fix it, or None.

    Asked in a process of its own: a registration holds for the life of a process, and a broken
    library could end it.
    """
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return f"pip install {PACKAGE}"
    if device == "AUTO":
        return "AUTO is chosen by OpenVINO's own runtime; pip install openvino"
    code = (
        "import sys\n"
        "from ortune.backends.runtimes.openvino import plugin\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    plugin.list_openvino_devices(sys.argv[1])\n"
        "except OrtuneError as error:\n    print(f'{error.what}; {error.fix}')"
    )
    return own_process.find_load_failure("the installed plug-in", code, device)
