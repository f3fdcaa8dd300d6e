"""Which properties the installed OpenVINO knows: its plug-in for onnxruntime ignores others."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache

from ortune.core.errors import BadSettings
from ortune.runtimes.onnxruntime import keys

_DEVICE = "CPU"


def demand(names: Sequence[str], *, plugged: bool) -> None:
    """Refuse properties that OpenVINO's CPU device does not take.

    Its own runtime is asked. The plug-in brings libraries of its own, which are searched.

    Raises:
        BadSettings: One of them is unknown.
    """
    for name in names:
        if not (_in_plugin(name) if plugged else name in writable()):
            raise BadSettings(
                f"OpenVINO's CPU device has no property '{name}'", fix=_nearest(name, plugged)
            )


@cache
def writable() -> tuple[str, ...]:
    """Return what the installed runtime's CPU device lets be set."""
    import openvino

    found = openvino.Core().get_property(_DEVICE, "SUPPORTED_PROPERTIES")
    return tuple(sorted(name for name, access in found.items() if str(access) != "RO"))


def _in_plugin(name: str) -> bool:
    found = keys.libraries("onnxruntime_ep_openvino", "")
    return not found or any(keys.written(library, name) for library in found)


def _nearest(name: str, plugged: bool) -> str:
    try:
        close = difflib.get_close_matches(name, writable(), n=3, cutoff=0.6)
    except ImportError:
        close = []
    return f"use one that it has, such as {', '.join(close)}" if close else "leave it out"
