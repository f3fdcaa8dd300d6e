"""Environments: names of the interpreters that workers run in, looked up on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings

_INTERPRETERS: Mapping[str, tuple[str, ...]] = {HERE: (sys.executable,)}


def interpreter(environment: str) -> tuple[str, ...]:
    """Return the command that starts Python in an environment.

    Raises:
        BadSettings: This machine has none of that name.
    """
    if environment not in _INTERPRETERS:
        raise BadSettings(
            f"no environment '{environment}' on this machine",
            fix=f"use one of: {', '.join(_INTERPRETERS)}",
        )
    return _INTERPRETERS[environment]
