"""Code that loads foreign libraries, run in a process of its own."""

import subprocess

from ortune.core.python_process import make_python_command

LIMIT_S = 60


def run_code(code: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Run Python code with words as its ``sys.argv[1:]``; None when it takes over a minute."""
    try:
        return subprocess.run(
            make_python_command("-c", code, *words),
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a library's own words may be in any encoding
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def find_load_failure(name: str, code: str, *words: str) -> str | None:
    """Return what code printed of a library that it loads, or how it ended; None for nothing.

    Args:
        name: What is loaded, for the text.
        code: Prints why the library is of no use; words are its ``sys.argv[1:]``.
    """
    done = run_code(code, *words)
    if done is None:
        return f"{name} does not load within {LIMIT_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{name} does not load: {last}"
    return done.stdout.strip() or None
