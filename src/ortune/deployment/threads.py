"""How many threads a plan was measured with, as a number."""

from __future__ import annotations

from ortune.bundle.source import Source
from ortune.core.hardware.cpus import effective_cpus


def threads(source: Source) -> int:
    """Return the threads of a plan; where it takes all CPUs, those of the machine it ran on.

    Other servers take 0 for a number of their own: a package always says how many.
    """
    measured = source.manifest.machine.get("effective cpus", "")
    return source.backend.threads or (int(measured) if measured.isdecimal() else effective_cpus())
