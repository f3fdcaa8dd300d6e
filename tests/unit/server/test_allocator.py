"""Freed memory stays with the process: what a server with large requests lives by."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

SCRIPT = """
    import resource
    from ortune.server.allocator import keep_freed_memory

    keep_freed_memory()
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def ask():
        one = bytes(600_000)
        return bytearray(one), bytearray(one)

    for _ in range(10):
        ask()
    before = faults()
    for _ in range(100):
        ask()
    print(faults() - before)
"""


def faults(**variables: str) -> int:
    """Return the pages that a hundred large requests take from the system."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", dedent(SCRIPT)],
        env={**kept, **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of another C library")
def test_large_blocks_are_not_taken_anew() -> None:
    assert faults() < 100
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 1000  # what the caller says holds
