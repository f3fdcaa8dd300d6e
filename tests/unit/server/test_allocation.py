"""Memory that was freed is used again, without new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from ortune.server.allocation import keep_freed
assert sys.argv[1] == "0" or keep_freed()
def ask():
    return [bytes(600_000) for _ in range(6)]
for _ in range(20):
    ask()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    ask()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an allocator of its own")
def test_requests_of_one_size_fault_in_no_pages() -> None:
    def faults(kept: str) -> int:
        command = [sys.executable, "-c", FAULTS, kept]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    assert faults("1") < 200
    assert faults("0") > 2000
