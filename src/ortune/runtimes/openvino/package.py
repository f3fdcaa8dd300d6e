"""OpenVINO's Python package, imported so that nothing leaves the machine."""

from __future__ import annotations

import sys
from typing import Any

SILENT = 'sys.modules.setdefault("openvino_telemetry", None)'
"""Code of a process of its own that says so before it imports the package."""


def load() -> Any:
    """Return the package ``openvino``, without the usage data that it sends when it is imported.

    It does that with package ``openvino-telemetry``, from a forked process that outlives a worker
    and holds its pipes open; where that package cannot be imported, it goes on without.
    """
    first = sys.modules.keys().isdisjoint({"openvino", "openvino_telemetry"})
    if first:  # else the program that we run in has decided
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        if first:
            del sys.modules["openvino_telemetry"]
    return openvino
