"""Add, list and remove environments: virtual ones of ours, below the cache folder."""

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

from ortune.core.atomic_write import hold_lock, open_draft, remove_path
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, OrtuneError, shorten_text, summarize_error
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.python_process import make_python_command
from ortune.measurement import environment as lookup
from ortune.measurement.environments.releases import Release, parse_release

FORMAT = 1
_WAIT_S = 900.0  # how long one process may take to make an environment that another wants too
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
    """

    name: str
    release: str
    distributions: tuple[str, ...]
    python: str
    folder: Path


def add_environment(text: str, name: str | None = None, sink: Sink = ignore_event) -> Environment:
    """Make an environment, or return it where it is there already.

    It is made beside its place and renamed when it is whole. Of two that add the same at once one
    waits for the other.

    Args:
        text: A release of the table, such as ``onnxruntime==1.24.4``, or a word of it: ``cuda``.
        name: What to call it; ``ort-1.24.4`` and the like without.

    Raises:
        BadSettings: There is no such release, the name is no word, or another release has it.
        OrtuneError: pip cannot install it; its reason is told.
    """
    target = parse_release(text)
    name = name or target.name
    root = lookup.environment_folder(name)
    with _lock_environment(name):
        if name not in lookup.list_environment_names():
            if root.exists():
                raise _foreign_folder_error(name, root)
            sink(Note(f"making environment {name}: {', '.join(target.distributions)}"))
            _make_environment(root, target)
        environment = read_environment(name)
    if environment.release != str(target):
        raise BadSettings(
            f"environment '{name}' holds {environment.release or 'something else'}",
            fix=f"give --name ANOTHER, or `ortune doctor env remove {name}` first",
        )
    return environment


def ensure_environment(target: Release, sink: Sink = ignore_event) -> Environment:
    """Return an environment that holds a release, made under its own name where there is none."""
    for environment in list_environments():
        if environment.distributions == target.distributions:
            return environment
    return add_environment(str(target), sink=sink)


def list_environments() -> tuple[Environment, ...]:
    """Return all environments of this machine, by name."""
    return tuple(map(read_environment, lookup.list_environment_names()))


def read_environment(name: str) -> Environment:
    """Return what is recorded of an environment."""
    root = lookup.environment_folder(name)
    try:
        path = root / lookup.RECORD
        record = json.loads(path.read_text("utf-8")) if path.stat().st_size < _LARGEST else {}
        distributions = tuple(map(str, record["distributions"]))
        return Environment(
            name, str(record["release"]), distributions, str(record["python"]), root
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Environment(name, "", (), "", root)


def remove_environment(name: str) -> Path:
    """Remove an environment and return where it lay. Raises BadSettings: it is none of ours."""
    if name == HERE:
        raise BadSettings(
            f"'{HERE}' is the Python that runs ortune, not an environment of its own",
            fix="name one of `ortune doctor env list`",
        )
    root = lookup.environment_folder(name)
    if name not in lookup.list_environment_names():
        if root.exists():
            raise _foreign_folder_error(name, root)
        available = ", ".join(lookup.list_environment_names()) or "none here"
        raise BadSettings(
            f"no environment '{name}' on this machine", fix=f"there are: {available}"
        )
    with _lock_environment(name):
        gone = root.with_name(f".{name}.gone.part")
        remove_path(gone)
        root.rename(gone)
        remove_path(gone)
    return root


@contextmanager
def _lock_environment(name: str) -> Iterator[None]:
    """Hold an environment's lock, and clear away what a process that died left of it."""
    root = lookup.environment_folder(name)
    busy = OrtuneError(
        f"another process is making environment '{name}'", fix="wait until it is done"
    )
    with hold_lock(root.with_name(f".{name}.lock"), busy, _WAIT_S):
        for leftover in root.parent.glob(f".{name}.*.part"):
            remove_path(leftover)
        yield


def _foreign_folder_error(name: str, root: Path) -> BadSettings:
    return BadSettings(
        f"'{root}' is not an environment that ortune made",
        fix="move it away, or choose another name with --name",
    )


def _make_environment(root: Path, target: Release) -> None:
    record: Mapping[str, object] = {
        "format": FORMAT,
        "release": str(target),
        "distributions": list(target.distributions),
        "python": platform.python_version(),
    }
    with open_draft(root, durable=False) as draft:
        try:
            venv.EnvBuilder(symlinks=sys.platform != "win32", with_pip=False).create(draft)
        except (OSError, subprocess.SubprocessError) as error:
            raise OrtuneError(
                f"cannot make a virtual environment in '{root.parent}': {summarize_error(error)}",
                fix="free some space there, or point XDG_CACHE_HOME at another folder",
            ) from error
        _install_release(lookup.python_path(draft), target, root.name)
        (draft / lookup.RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _install_release(python: Path, target: Release, name: str) -> None:
    """Have the pip of this Python install into another."""
    command = make_python_command("-m", "pip", "--python", python, *_PIP.split())
    try:
        done = subprocess.run(
            [*command, *target.distributions],
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return
        output = done.stderr + done.stdout
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or ["it gives no reason"])[-1]
        offline = _OFFLINE.search(output)
        reason = shorten_text(f"{reason} ({offline[0].strip()})" if offline else reason, 300)
    except subprocess.TimeoutExpired:
        reason = f"it takes longer than {_LIMIT_S // 60} minutes"
    fix = "check the network, or have pip look elsewhere: PIP_INDEX_URL, PIP_FIND_LINKS"
    index, distribution = target.family.index, target.family.distribution
    if index and distribution in reason:  # some wheels are on an index of their maker's alone
        fix = (
            f"{distribution} is on its vendor's package index: "
            f"PIP_EXTRA_INDEX_URL='{index}' ortune doctor env add {target}"
        )
    raise OrtuneError(f"cannot make environment '{name}': pip: {reason}", fix=fix)
