"""Environments: names of the interpreters that workers run in, looked up on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ortune.core.capabilities import HERE, mixed, runtimes
from ortune.core.errors import BadSettings, OrtuneError, shortened
from ortune.core.outputs import caches

RECORD = "environment.json"
"""The file by which a folder is known as an environment of ours."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_PYTHON = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
_PACKAGE = Path(__file__).parents[1]


def folder(name: str) -> Path:
    """Return where an environment of this name lies, whether or not there is one.

    Raises:
        BadSettings: It is no word, or stands for this interpreter.
        OrtuneError: There is no cache folder.
    """
    if name == HERE or not _NAME.fullmatch(name):
        raise BadSettings(
            f"'{shortened(name, 80)}' is no name for an environment",
            fix="write a word of a-z, 0-9, '-' and '.', such as ort-1.24.4",
        )
    return _home() / name


def names() -> tuple[str, ...]:
    """Return the names of the environments of ours that there are, in order."""
    found = []
    with suppress(OSError, OrtuneError):
        found = [path.name for path in _home().iterdir() if _ours(path)]
    return tuple(sorted(found))


def interpreter(environment: str) -> tuple[str, ...]:
    """Return the command that starts Python in an environment.

    Raises:
        BadSettings: This machine has none of that name, its Python is gone, or two distributions
            of onnxruntime are in it.
    """
    if environment == HERE:
        return (sys.executable,)
    known = names()
    if environment not in known:
        raise BadSettings(
            f"no environment '{shortened(environment, 80)}' on this machine",
            fix=f"use one of: {', '.join((HERE, *known))}; `ortune env add` makes more",
        )
    command = python(folder(environment))
    if not command.exists():
        raise BadSettings(
            f"the Python that environment '{environment}' was made with is gone",
            fix=f"`ortune env remove {environment}`, then add it again",
        )
    home = packages(folder(environment))
    if problem := mixed(runtimes([str(home)])) if home else None:
        raise BadSettings(
            f"in environment '{environment}' {problem[0]}",
            fix=f"`ortune env remove {environment}`, then add it again",
        )
    return (str(command),)


def python(root: Path) -> Path:
    """Return the interpreter of the environment in a folder."""
    return root / _PYTHON


def variables(environment: str) -> Mapping[str, str]:
    """Return the environment variables by which a worker finds our own source, and no more of us.

    In an environment it is on the import path alone, through a link: what lies beside it here,
    another onnxruntime among it, would come before what is installed there. Where shared libraries
    are installed as packages (CUDA, cuDNN, TensorRT), the loader looks there first.

    Raises:
        OrtuneError: The link cannot be made.
    """
    if environment == HERE:
        return {}
    key = hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:12]
    home = folder(environment) / "source" / key
    link = home / _PACKAGE.name
    try:
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(_PACKAGE, target_is_directory=True)
    except OSError as error:
        raise OrtuneError(
            f"cannot link ortune's source into environment '{environment}': "
            f"{error.strerror or error}",
            fix=f"make '{home}' a folder that may be written and take links",
        ) from error
    found = {"PYTHONPATH": str(home), "PYTHONNOUSERSITE": "1"}
    if folders := libraries(folder(environment)):
        before = os.environ.get("LD_LIBRARY_PATH")
        found["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *([before] if before else [])])
    return found


def packages(root: Path) -> Path | None:
    """Return where the packages of the environment in a folder lie; None where there are none."""
    found = [*root.glob("lib/python3*/site-packages"), *root.glob("Lib/site-packages")]
    return next(iter(found), None)


def libraries(root: Path) -> tuple[str, ...]:
    """Return the folders of an environment's packages that hold NVIDIA's shared libraries."""
    home = packages(root)
    if home is None:
        return ()
    found = [*sorted(home.glob("nvidia/*/lib")), home / "tensorrt_libs"]
    return tuple(str(path) for path in found if path.is_dir())


def _home() -> Path:
    """Return where environments lie.

    Raises:
        OrtuneError: There is no cache folder.
    """
    ours = caches()
    if ours is None:
        raise OrtuneError(
            "there is no cache folder for environments", fix="set XDG_CACHE_HOME to a folder"
        )
    return ours / "environments"


def _ours(path: Path) -> bool:
    return bool(_NAME.fullmatch(path.name)) and (path / RECORD).is_file()
