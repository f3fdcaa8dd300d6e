"""How a Python process is started: nothing in the current folder is imported by it.

`python -m` and `python -c` put that folder first on the import path, so that a stray ``numpy.py``
beside a model would run in every process that imports NumPy. This is the one place that starts
Python; `tools/layout` refuses another.
"""

import sys
from pathlib import Path


def make_python_command(
    *words: str | Path, python: Path | None = None, isolated: bool = False
) -> list[str]:
    """Return the words that start Python in its safe-path mode.

    ``PYTHONPATH``, a person's own word, counts as ever.

    Args:
        words: What it runs: ``-m`` and a module, ``-c`` and code or a file, and arguments.
        python: Another interpreter than the one that runs.
        isolated: Let no variable of the environment and no packages of the user's count either:
            for what needs the standard library alone.
    """
    return [str(python or sys.executable), "-I" if isolated else "-P", *map(str, words)]
