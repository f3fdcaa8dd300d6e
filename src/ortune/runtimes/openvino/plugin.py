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

from ortune.core.errors import BackendMissing
from ortune.core.session import Recording, Session
from ortune.model.io.protobuf import fixed
from ortune.runtimes import own_process
from ortune.runtimes.onnxruntime import record as ort_record
from ortune.runtimes.onnxruntime import session as ort

PACKAGE = "onnxruntime-ep-openvino"
PROVIDER = "OpenVINOExecutionProvider"


def session(
    path: Path, threads: int, options: Mapping[str, str], *, verbose: bool
) -> AbstractContextManager[Session]:
    """Open a session; options go through ``load_config``, elsewhere they are ignored.

    Raises:
        BackendMissing: The plug-in is not installed, offers no device, or took no node.
    """
    made = _options(threads, options, verbose)
    return ort.session(path, made, provider=PROVIDER, content=fixed(path))


def record(
    path: Path, threads: int, options: Mapping[str, str], folder: Path, *, verbose: bool
) -> AbstractContextManager[Recording]:
    """Open the same session with the profiler on; a graph of compiled nodes cannot be saved.

    Raises:
        BackendMissing: As `session`.
    """
    made = _options(threads, options, verbose)
    return ort_record.session(path, made, folder, provider=PROVIDER, content=fixed(path))


def takes(path: Path, threads: int, options: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return provider -> names of the nodes it takes, onnxruntime's own rewriting off.

    Raises:
        BackendMissing: As `session`.
    """
    made = _options(threads, options, verbose=False, level="disabled")
    with ort.session(path, made, provider=PROVIDER, content=fixed(path)) as opened:
        return opened.assigned()


def _options(threads: int, options: Mapping[str, str], verbose: bool, level: str = "all") -> Any:
    made = ort.options(threads, level, verbose=verbose)
    config = {"load_config": json.dumps({"CPU": dict(options)})}
    made.add_provider_for_devices(devices()[:1], config)
    return made


def devices() -> list[Any]:
    """Register the plug-in and return its CPU devices.

    Raises:
        BackendMissing: It is not installed, or offers none.
    """
    try:
        import onnxruntime_ep_openvino as plugin
    except ImportError:
        raise BackendMissing(
            "the OpenVINO plug-in is not installed", fix=f"pip install {PACKAGE}"
        ) from None
    found = ort.plugin_devices("openvino", plugin.get_library_path, plugin.get_ep_name(), "CPU")
    if not found:
        raise BackendMissing(
            "the installed OpenVINO plug-in takes Intel CPUs only (onnxruntime PR#31981)",
            fix="pip install openvino, the runtime without the plug-in",
        )
    return found


@cache
def missing() -> str | None:
    """Return what keeps the plug-in from working here and how to fix it, or None.

    Asked in a process of its own: a registration holds for the life of a process, and a broken
    library could end it.
    """
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return f"pip install {PACKAGE}"
    code = (
        "from ortune.runtimes.openvino import plugin\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    plugin.devices()\n"
        "except OrtuneError as error:\n    print(f'{error.what}; {error.fix}')"
    )
    done = own_process.run(code)
    if done is None:
        return "the installed plug-in does not load within a minute"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"the installed plug-in does not load: {last}"
    return done.stdout.strip() or None
