"""Stands where cuda-bindings' runtime does and replays the same transcript."""

from __future__ import annotations

from typing import Any

import replay

_API = "cuda-bindings-13.5"


def __getattr__(name: str) -> Any:
    """Return an enum, or a function, which gives an error and what else it gives."""
    if name in replay.enums(_API):
        return replay.enums(_API)[name]
    if name not in replay.surface(_API).methods:
        raise AttributeError(name)

    def made(*given: Any) -> tuple[Any, ...]:
        found = replay.call(f"cudart.{name}", name, given, _API)
        error, *more = found if isinstance(found, tuple) else (found,)
        return (replay.enums(_API)["cudaError_t"](error), *more)

    return made
