"""The version of this package, and the commit that it was built from."""

from pathlib import Path

__version__ = "0.1.0"


def read_commit() -> str:
    """Return the commit, with ``-dirty`` behind it where files were changed; empty if unknown.

    A build writes it beside this file; a checkout is asked through git.
    """
    here = Path(__file__).resolve()
    if (kept := here.with_name("commit.txt")).is_file():
        return kept.read_text(encoding="utf-8").strip()
    if len(here.parents) < 4 or not (here.parents[3] / ".git").exists():
        return ""
    import subprocess

    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=here.parents[3], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
