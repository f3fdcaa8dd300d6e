"""Code that loads foreign libraries, run in a process of its own."""

from __future__ import annotations

import subprocess
import sys

LIMIT_S = 60


def run(code: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Run Python code with words as its ``sys.argv[1:]``; None when it takes over a minute."""
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a library's own words may be in any encoding
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
