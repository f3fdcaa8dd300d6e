"""Add, list and remove environments: virtual ones of ours, below the cache folder."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ortune.core.atomic_write import atomic, held, remove
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, OrtuneError, gist, shortened
from ortune.core.event import Note, Sink, silent
from ortune.measurement import environment as lookup
from ortune.measurement.environments.releases import Release, release

FORMAT = 1
_WAIT_S = 900.0
"""How long one process may take to make an environment that another wants too."""
_LIMIT_S = 1800
_LARGEST = 64 * 1024
_PIP = (
    "install --no-input --disable-pip-version-check --quiet --no-deps --only-binary :all: "
    "--no-compile --retries 1"
)
_OFFLINE = re.compile(r"\[Errno -?\d+\] [^'\")>]+|Read timed out|Connection refused")


@dataclass(frozen=True)
class Environment:
    """One environment of this machine.

    Attributes:
        name: As ``--environment`` takes it.
        release: What it was made for; empty where its record cannot be read.
        distributions: All that was installed.
        python: The Python that it was made with.
        folder: Where it lies.
    """

    name: str
    release: str
    distributions: tuple[str, ...]
    python: str
    folder: Path


def add(wanted: str, name: str | None = None, sink: Sink = silent) -> Environment:
    """Make an environment, or return it where it is there already.

    It is made beside its place and renamed when it is whole. Of two that add the same at once one
    waits for the other.

    Args:
        wanted: A release of the table, such as ``onnxruntime==1.24.4``, or a word of it: ``cuda``.
        name: What to call it; ``ort-1.24.4`` and the like without.

    Raises:
        BadSettings: There is no such release, the name is no word, or another release has it.
        OrtuneError: pip cannot install it; its reason is told.
    """
    found = release(wanted)
    name = name or found.name
    root = lookup.folder(name)
    with _alone(name):
        if name not in lookup.names():
            if root.exists():
                raise _foreign(name, root)
            sink(Note(f"making environment {name}: {', '.join(found.distributions)}"))
            _make(root, found)
        made = read(name)
    if made.release != str(found):
        raise BadSettings(
            f"environment '{name}' holds {made.release or 'something else'}",
            fix=f"give --name ANOTHER, or `ortune env remove {name}` first",
        )
    return made


def ensured(wanted: Release, sink: Sink = silent) -> Environment:
    """Return an environment that holds a release, made under its own name where there is none."""
    for one in listed():
        if one.distributions == wanted.distributions:
            return one
    return add(str(wanted), sink=sink)


def listed() -> tuple[Environment, ...]:
    """Return all environments of this machine, by name."""
    return tuple(map(read, lookup.names()))


def read(name: str) -> Environment:
    """Return what is recorded of an environment."""
    root = lookup.folder(name)
    try:
        path = root / lookup.RECORD
        told = json.loads(path.read_text("utf-8")) if path.stat().st_size < _LARGEST else {}
        distributions = tuple(map(str, told["distributions"]))
        return Environment(name, str(told["release"]), distributions, str(told["python"]), root)
    except (OSError, ValueError, KeyError, TypeError):
        return Environment(name, "", (), "", root)


def taken_out(name: str) -> Path:
    """Remove an environment and return where it lay.

    Raises:
        BadSettings: It is none of ours.
    """
    if name == HERE:
        raise BadSettings(
            f"'{HERE}' is the Python that runs ortune, not an environment of its own",
            fix="name one of `ortune env list`",
        )
    root = lookup.folder(name)
    if name not in lookup.names():
        if root.exists():
            raise _foreign(name, root)
        known = ", ".join(lookup.names()) or "none here"
        raise BadSettings(f"no environment '{name}' on this machine", fix=f"there are: {known}")
    with _alone(name):
        gone = root.with_name(f".{name}.gone.part")
        remove(gone)
        root.rename(gone)
        remove(gone)
    return root


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold an environment's lock, and clear away what a process that died left of it."""
    root = lookup.folder(name)
    busy = OrtuneError(
        f"another process is making environment '{name}'", fix="wait until it is done"
    )
    with held(root.with_name(f".{name}.lock"), busy, _WAIT_S):
        for left in root.parent.glob(f".{name}.*.part"):
            remove(left)
        yield


def _foreign(name: str, root: Path) -> BadSettings:
    return BadSettings(
        f"'{root}' is no environment that ortune made", fix=f"move it away, or do without '{name}'"
    )


def _make(root: Path, wanted: Release) -> None:
    record: Mapping[str, object] = {
        "format": FORMAT,
        "release": str(wanted),
        "distributions": list(wanted.distributions),
        "python": platform.python_version(),
    }
    with atomic(root, durable=False) as draft:
        try:
            venv.EnvBuilder(symlinks=sys.platform != "win32", with_pip=False).create(draft)
        except (OSError, subprocess.SubprocessError) as error:
            raise OrtuneError(
                f"cannot make a virtual environment in '{root.parent}': {gist(error)}",
                fix="free some space there, or point XDG_CACHE_HOME at another folder",
            ) from error
        _install(lookup.python(draft), wanted, root.name)
        (draft / lookup.RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _install(python: Path, wanted: Release, name: str) -> None:
    """Have the pip of this Python install into another.

    Raises:
        OrtuneError: It fails; the text has pip's last error, and what kept it from the network.
    """
    command = [sys.executable, "-m", "pip", "--python", str(python), *_PIP.split()]
    try:
        done = subprocess.run(
            [*command, *wanted.distributions],
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return
        said = done.stderr + done.stdout
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or ["it gives no reason"])[-1]
        offline = _OFFLINE.search(said)
        reason = shortened(f"{reason} ({offline[0].strip()})" if offline else reason, 300)
    except subprocess.TimeoutExpired:
        reason = f"it takes longer than {_LIMIT_S // 60} minutes"
    fix = "check the network, or have pip look elsewhere: PIP_INDEX_URL, PIP_FIND_LINKS"
    index, distribution = wanted.family.index, wanted.family.distribution
    if index and distribution in reason:  # some wheels are on an index of their maker's alone
        fix = (
            f"its maker keeps {distribution} on an index of its own: "
            f"PIP_EXTRA_INDEX_URL='{index}' ortune env add {wanted}"
        )
    raise OrtuneError(f"cannot make environment '{name}': pip: {reason}", fix=fix)
