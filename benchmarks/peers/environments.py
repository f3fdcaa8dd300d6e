"""An environment a tool, from its pinned requirements; made once, and anew when those change.

Large files that environments have in common (torch, above all) are hard links to one copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "peers"
_STAMP = "installed.json"
_PIP = ("-m", "pip", "install", "-q", "--no-input", "--no-compile")
_LARGE = 1 << 18
"""Bytes from which a file is shared between environments."""


@dataclass(frozen=True)
class Environment:
    """A tool's Python, or why there is none.

    Attributes:
        seconds: That the installation took.
        size: Bytes on disk.
        error: The installer's last line; empty when it is there.
    """

    tool: str
    key: str
    seconds: float = 0.0
    size: int = 0
    error: str = ""

    @property
    def python(self) -> Path:
        """The interpreter."""
        return CACHE / self.tool / "env" / "bin" / "python"


def environment(tool: str, folder: Path = HERE / "requirements") -> Environment:
    """Return a tool's environment, installed now if it is not there as pinned.

    Args:
        folder: Where its requirements lie.
    """
    requirements = folder / f"{tool}.txt"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    place = CACHE / tool / "env"
    stamp = place / _STAMP
    if stamp.is_file():
        known = Environment(**json.loads(stamp.read_text()))
        if known.key == key:
            return known
    shutil.rmtree(place, ignore_errors=True)
    start = time.monotonic()
    error = _install(place, requirements)
    if error:
        shutil.rmtree(place, ignore_errors=True)
        return Environment(tool, key, time.monotonic() - start, 0, error)
    size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file() and not p.is_symlink())
    made = Environment(tool, key, round(time.monotonic() - start, 1), size)
    share(place, CACHE / "shared")
    stamp.write_text(json.dumps(asdict(made)))
    return made


def share(place: Path, pool: Path) -> int:
    """Replace large files by hard links to equal ones of `pool`, which gains the others.

    A package that is installed over such a file unlinks it first, so the others keep theirs.

    Returns:
        Bytes that no longer stand twice.
    """
    pool.mkdir(parents=True, exist_ok=True)
    saved = 0
    for path in sorted(place.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size < _LARGE:
            continue
        with path.open("rb") as file:
            one = pool / hashlib.file_digest(file, "sha256").hexdigest()
        if not one.is_file():
            os.link(path, one)
        elif not one.samefile(path):
            saved += path.stat().st_size
            draft = path.with_name(f".{path.name}.linked")
            os.link(one, draft)
            draft.replace(path)
    return saved


def _install(folder: Path, requirements: Path) -> str:
    """Return the last line of what went wrong, or nothing."""
    python = folder / "bin" / "python"
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), *_PIP, "-r", str(requirements)],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1] if lines else f"exit {done.returncode}"
    return ""


def cpu_time() -> float:
    """Return the CPU seconds of this process and of those that it started and that ended."""
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in every)
