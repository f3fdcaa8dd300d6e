"""Modules that a library imports and few runs need: they are loaded when they are used."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_DEFERRED = frozenset(("sympy", "onnx_ir._symbolic_shapes"))
"""What onnx_ir imports for arithmetic with named dimensions: a third of the CPU time of
``from ortune import optimize``."""


class _DeferringFinder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the deferred modules as `PathFinder` does; its code waits."""
        spec = PathFinder.find_spec(fullname, path) if fullname in _DEFERRED else None
        if spec is not None and spec.loader is not None:
            from importlib.util import LazyLoader

            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Let the deferred modules wait, in this process."""
    sys.meta_path.insert(0, _DeferringFinder())
