"""Environments: names of the interpreters that workers run in, looked up on this machine."""

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, OrtuneError, shorten_text, suggest_names
from ortune.core.outputs import find_cache_folder
from ortune.core.runtime_conflict import find_runtime_conflict, list_runtimes

RECORD = "environment.json"  # the file by which a folder is known as an environment of ours
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_PYTHON = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
_PACKAGE = Path(__file__).parents[1]


def environment_folder(name: str) -> Path:
    """Return where an environment of this name lies, whether or not there is one.

    Raises:
        BadSettings: It is no word, or stands for this interpreter.
        OrtuneError: There is no cache folder.
    """
    if name == HERE or not _NAME.fullmatch(name):
        raise BadSettings(
            f"'{shorten_text(name, 80)}' is no name for an environment",
            fix="write a word of a-z, 0-9, '-' and '.', such as ort-1.24.4",
        )
    return _environments_root() / name


def list_environment_names() -> tuple[str, ...]:
    """Return the names of the environments of ours that there are, in order."""
    matches = []
    with suppress(OSError, OrtuneError):
        matches = [
            path.name
            for path in _environments_root().iterdir()
            if _NAME.fullmatch(path.name) and (path / RECORD).is_file()
        ]
    return tuple(sorted(matches))


def find_interpreter(environment: str) -> Path | None:
    """Return the Python of an environment; None for the one that runs.

    Raises:
        BadSettings: This machine has none of that name, its Python is gone, or two distributions
            of onnxruntime are in it.
    """
    if environment == HERE:
        return None
    available = list_environment_names()
    if environment not in available:
        raise BadSettings(
            f"no environment '{shorten_text(environment, 80)}' on this machine",
            fix=suggest_names(environment, (HERE, *available))
            + "; `ortune doctor env add` makes more",
        )
    command = python_path(environment_folder(environment))
    if not command.exists():
        raise BadSettings(
            f"the Python that environment '{environment}' was made with is gone",
            fix=f"`ortune doctor env remove {environment}`, then add it again",
        )
    home = find_packages(environment_folder(environment))
    if problem := find_runtime_conflict(list_runtimes([str(home)])) if home else None:
        raise BadSettings(
            f"in environment '{environment}' {problem[0]}",
            fix=f"`ortune doctor env remove {environment}`, then add it again",
        )
    return command


def python_path(root: Path) -> Path:
    """Return the interpreter of the environment in a folder."""
    return root / _PYTHON


def worker_variables(environment: str) -> Mapping[str, str]:
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
    home = environment_folder(environment) / "source" / key
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
    environment_variables = {"PYTHONPATH": str(home), "PYTHONNOUSERSITE": "1"}
    if folders := find_nvidia_folders(environment_folder(environment)):
        before = os.environ.get("LD_LIBRARY_PATH")
        environment_variables["LD_LIBRARY_PATH"] = os.pathsep.join(
            [*folders, *([before] if before else [])]
        )
    return environment_variables


def find_packages(root: Path) -> Path | None:
    """Return where the packages of the environment in a folder lie; None where there are none."""
    candidates = [*root.glob("lib/python3*/site-packages"), *root.glob("Lib/site-packages")]
    return next(iter(candidates), None)


def find_nvidia_folders(root: Path) -> tuple[str, ...]:
    """Return the folders of an environment's packages that hold NVIDIA's shared libraries."""
    home = find_packages(root)
    if home is None:
        return ()
    candidates = [*sorted(home.glob("nvidia/*/lib")), home / "tensorrt_libs"]
    return tuple(str(path) for path in candidates if path.is_dir())


def _environments_root() -> Path:
    """Return where environments lie."""
    ours = find_cache_folder()
    if ours is None:
        raise OrtuneError(
            "there is no cache folder for environments", fix="set XDG_CACHE_HOME to a folder"
        )
    return ours / "environments"
