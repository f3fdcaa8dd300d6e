"""Libraries of custom operators for onnxruntime. They are code, and run."""

import platform
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ortune.backends.runtimes import own_process
from ortune.core import regular_file
from ortune.core.errors import BadSettings, OrtuneError, summarize_error
from ortune.core.plugins import user_file, user_function

_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF's ``e_machine``."""


def find_library(text: str) -> Path:
    """Return the shared library; a Python file or module is run and asked for it.

    Raises:
        BadSettings: It is not there, gives no library, or was built for another machine.
    """
    path = Path(text)
    if not user_function.is_path(text) or text.endswith(".py"):
        module: Any
        if text.endswith(".py"):
            module = user_file.run_file(Path(text))
        else:
            try:
                module = user_function.import_local(text.replace("-", "_"))
            except Exception as error:
                raise BadSettings(
                    f"no library of custom operators '{text}': "
                    f"{user_function.describe_error(error)}",
                    fix=f"pip install {text}, or give the path of a library",
                ) from error
        try:
            path = Path(module.get_library_path())
        except OrtuneError:
            raise
        except Exception as error:
            raise BadSettings(
                f"'{text}' gives no library of custom operators: "
                f"{user_function.describe_error(error)}",
                fix="define get_library_path() in it, as onnxruntime_extensions does",
            ) from error
    if not path.is_file():
        raise BadSettings(
            f"no library of custom operators '{path}'", fix="build it first, or correct the path"
        )
    if other := find_foreign_platform(path):
        here = f"{platform.machine()} {platform.system()}"
        raise BadSettings(
            f"'{path}' was built for {other}, and this is {here}", fix="build it on this machine"
        )
    return path


def register(options: Any, libraries: Sequence[str]) -> None:
    """Add libraries to a session's options, each once, whoever names it.

    Raises:
        BadSettings: One does not load, or holds no custom operators.
    """
    spellings: dict[Path, str] = {}
    for text in libraries:
        spellings.setdefault(find_library(text).resolve(), text)
    for path, text in spellings.items():
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            reason = summarize_error(str(error).rpartition("failed:")[2].strip() or error)
            raise BadSettings(
                f"'{text}' does not load as a library of custom operators: {reason}",
                fix="check that it exports RegisterCustomOps, and that the libraries it links to "
                "are installed",
            ) from error


@cache
def demand_loadable(libraries: tuple[str, ...]) -> None:
    """Load libraries in a process of its own: a broken one could end this one.

    Raises:
        BadSettings: One cannot be used.
    """
    code = (
        "import sys, onnxruntime\n"
        "from ortune.backends.runtimes.onnxruntime import custom_ops\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    custom_ops.register(onnxruntime.SessionOptions(), sys.argv[1:])\n"
        "except OrtuneError as error:\n    print(f'{error.what}\\n{error.fix}')"
    )
    done, names = own_process.run_code(code, *libraries), ", ".join(libraries)
    if done is None:
        problem = f"{names}: loading takes more than {own_process.LIMIT_S} s"
        raise BadSettings(problem, fix="repair the library")
    if done.returncode:
        how = f"ends with exit code {done.returncode}"
        if done.returncode < 0:
            how = f"is killed by {signal.Signals(-done.returncode).name}"
        raise BadSettings(
            f"{names}: a process that loads this {how}",
            fix="rebuild the library for an API version that this onnxruntime has",
        )
    if lines := done.stdout.strip().splitlines()[-2:]:
        raise BadSettings(lines[0], fix=lines[-1])


def find_foreign_platform(path: Path) -> str:
    """Return the machine or system of a library that is of another one than this; else empty."""
    with regular_file.open_regular(path) as file:
        head = file.read(20)
    if head[:4] == b"\x7fELF":
        order = "little" if head[5] == 1 else "big"
        machine = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
        name = _MACHINES.get(machine, f"machine {machine}")
        host_machine = platform.machine().lower().replace("amd64", "x86_64")
        if sys.platform != "linux":
            return f"{name} Linux"
        return name if name != host_machine and host_machine in _MACHINES.values() else ""
    if head[:2] == b"MZ":
        return "" if sys.platform == "win32" else "Windows"
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "" if sys.platform == "darwin" else "macOS"
    return ""
