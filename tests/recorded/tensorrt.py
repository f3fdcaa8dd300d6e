"""Stands where TensorRT's module does and replays a transcript: it computes nothing.

NVIDIA's signatures are real (`signatures/`), the transcripts are written from its documentation.
What a device would do is not imitated.
"""

from __future__ import annotations

from typing import Any

import replay

_API = replay.api()
_CLASSES = ("Builder", "OnnxParser", "Runtime")

__version__ = replay.surface(_API).version


class ILogger:
    """What a program's own logger derives from."""

    Severity = replay.enums(_API)["Severity"]

    def log(self, severity: Any, msg: str) -> None:
        """Overridden by the program."""


class IOutputAllocator:
    """What a program's own allocator derives from."""


def __getattr__(name: str) -> Any:
    """Return an enum, a class or a function; what the API lacks is no attribute."""
    if name in replay.enums(_API):
        return replay.enums(_API)[name]
    known = replay.surface(_API).methods
    if name not in known or not (name in _CLASSES or name.islower()):
        raise AttributeError(name)

    def made(*given: Any) -> Any:
        found = replay.call(name, name, given, _API)
        if name in _CLASSES:
            return replay.Recorded(found._label, name, _API)
        return found

    return made
