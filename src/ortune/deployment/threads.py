"""How many threads a plan was measured with, as a number."""

from __future__ import annotations

import re

from ortune.bundle.source import Source
from ortune.core import wording
from ortune.core.errors import BadModel
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored

_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_MOST = 4096
"""Threads of one model at most."""


def threads(source: Source) -> int:
    """Return the threads of a plan; where it takes all CPUs, those of the machine it ran on.

    Other servers take 0 for a number of their own: a package always says how many.

    Raises:
        BadModel: They are more than any machine has CPUs: a package is handed on, and started
            where nobody lowers them.
    """
    text = source.manifest.machine.get("effective cpus", "")
    measured = int(text) if _NUMBER.fullmatch(text) else effective_cpus()
    found = source.backend.threads or measured
    if found > _MOST:
        asked = wording.count(found, "thread")
        raise BadModel(f"its settings ask for {asked}", fix=stored.DISTRUST)
    return found
