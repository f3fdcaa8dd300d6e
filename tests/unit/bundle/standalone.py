"""The reader in one file as a module, and what opens bundles as it does."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

from ortune.core.errors import BadModel, OrtuneError
from ortune.engine.load import load
from ortune.engine.reader.generate import source

ENGINE: Any = SimpleNamespace(load=load, BadModel=BadModel, OrtuneError=OrtuneError)


@cache
def reader() -> ModuleType:
    """Run the text of the reader as a module of its own; its errors are its own classes."""
    module = ModuleType("written_reader")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source(), "reader.py", "exec"), vars(module))
    return module
