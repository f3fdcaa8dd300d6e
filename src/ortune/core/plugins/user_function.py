"""Functions of the user, named ``pkg.module:function`` on a command line."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from ortune.core.errors import BadSettings

_ENDINGS = (".py", ".so", ".dll", ".dylib")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_function(text: str) -> bool:
    """Say whether a text is spelled like ``pkg.module:function``."""
    return _PATH.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Say whether a text names a file of code or a library, not a Python module."""
    return "/" in text or "\\" in text or ".so." in text or text.endswith(_ENDINGS)


def function(path: str) -> Callable[..., Any]:
    """Import ``pkg.module:function``; modules in the current folder count.

    Raises:
        BadSettings: The module does not import, or has no such function.
    """
    if not is_function(path):
        raise BadSettings(f"cannot read '{path}'", fix="write pkg.module:function")
    module, _, name = path.partition(":")
    here_counts()
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise BadSettings(
            f"cannot import '{path}': {reason(error)}",
            fix=f"run from the folder that holds {module.partition('.')[0]}, or install it",
        ) from error
    if not callable(found):
        raise BadSettings(
            f"module '{module}' has no function '{name}'", fix=f"define {name} at its top level"
        )
    checked: Callable[..., Any] = found
    return checked


def here_counts() -> None:
    """Let modules in the current folder be imported, as they are by ``python -m``."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def reason(error: BaseException) -> str:
    """Return an exception's type and text as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
