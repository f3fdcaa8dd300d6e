"""Functions of the user: ``FILE.py:NAME`` or ``pkg.module:NAME`` on a command line."""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ortune.core import regular_file
from ortune.core.errors import BadSettings

_ENDINGS = (".py", ".so", ".dll", ".dylib")
METRIC = ("a metric function", ("expected", "actual", "label"))
EVALUATE = ("an evaluate function", ("run",))
DATA = ("a data function", ())
DECODE = ("a decode function", ("outputs", "inputs"))
FRAME = ("a frame function", ("engine", "sample"))
"""What functions are asked for as, and what each is called with."""
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FILE = re.compile(r"(?P<file>[^:]*[^:/\\]\.py):[A-Za-z_]\w*")


def is_function(text: str) -> bool:
    """Say whether a text is spelled like ``FILE.py:NAME`` or ``pkg.module:NAME``."""
    return (_FILE.fullmatch(text) or _PATH.fullmatch(text)) is not None


def is_factory(text: str) -> bool:
    """Say whether a text names a function in a module, and that not of Python's own library."""
    is_in_module = _PATH.fullmatch(text) is not None
    return is_in_module and re.split("[.:]", text)[0] not in sys.stdlib_module_names


def is_path(text: str) -> bool:
    """Say whether a text names a file of code or a library, not a Python module."""
    return "/" in text or "\\" in text or ".so." in text or text.endswith(_ENDINGS)


def import_function(path: str, kind: str, takes: Sequence[str] = ()) -> Callable[..., Any]:
    """Import a function by its spelling; what the current folder has of a module's name counts.

    Args:
        kind: What it is asked for as, such as ``a metric function``.
        takes: What it will be called with.

    Raises:
        BadSettings: The module does not import or is Python's own, or what it has of that name
            cannot be called so.
    """
    demand_own(path, kind, takes)
    module, _, name = path.partition(":")
    file = _find_file(path)
    try:
        target = getattr(import_local(module) if file is None else _import_file(file), name, None)
    except Exception as error:
        fix = f"run from the folder that holds {module.partition('.')[0]}, or install it"
        if file is not None:
            fix = (
                f"correct {file}: `python {file}` must run" if file.is_file() else "check the path"
            )
        raise BadSettings(f"cannot import '{path}': {describe_error(error)}", fix=fix) from error
    if target is None:
        raise BadSettings(
            f"'{module}' has no function '{name}'", fix=f"define {name} at its top level"
        )
    inner = target
    while isinstance(inner, functools.partial):
        inner = inner.func
    if _is_standard(getattr(inner, "__module__", None) or ""):
        raise _make_mismatch_error(path, kind, takes)
    demand_callable(target, path, kind, takes)
    checked: Callable[..., Any] = target
    return checked


def demand_own(path: str, kind: str, takes: Sequence[str] = ()) -> None:
    """Refuse what names no function, or one of Python's own library; nothing is imported.

    Raises:
        BadSettings: It is one of these.
    """
    if not is_function(path):
        raise BadSettings(f"cannot read '{path}'", fix="write FILE.py:NAME, or pkg.module:NAME")
    if _find_file(path) is None and _is_standard(path.partition(":")[0]):
        raise _make_mismatch_error(path, kind, takes)


def demand_callable(target: object, path: str, kind: str, takes: Sequence[str] = ()) -> None:
    """Check that something can be called so; it is not called.

    Raises:
        BadSettings: It cannot.
    """
    if not callable(target):
        raise _make_mismatch_error(path, kind, takes)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(*takes)
    except TypeError:
        raise _make_mismatch_error(path, kind, takes) from None


def _make_mismatch_error(path: str, kind: str, takes: Sequence[str]) -> BadSettings:
    arguments = ", ".join(takes) or "nothing"
    return BadSettings(
        f"{path} is not {kind}", fix=f"name a function of your own that takes {arguments}"
    )


def _is_standard(module: str) -> bool:
    """Say whether a module is of Python's own library, and no file of the user's of that name."""
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names:
        return False
    try:
        spec = _find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return False
    if spec is None or spec.origin is None:
        return False
    library = Path(sysconfig.get_path("stdlib"))
    return spec.origin in ("built-in", "frozen") or Path(spec.origin).is_relative_to(library)


@dataclass(frozen=True)
class NeighbourFinder(MetaPathFinder):
    """Finds modules in a folder, behind all other finders: a stray ``numpy.py`` there never runs.

    A last entry of ``sys.path`` would come before packages without ``__init__``, such as google's.
    """

    folder: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the folder has of a module that lies in no package."""
        return PathFinder.find_spec(fullname, [self.folder]) if path is None else None


def import_local(module: str) -> ModuleType:
    """Import a module that a person named, from the current folder where that has it.

    Its neighbours in that folder are found where nothing else has their names.
    """
    top = module.partition(".")[0]
    spec = _find_local(top)
    if spec is not None:
        finder = NeighbourFinder(str(Path.cwd()))
        if finder not in sys.meta_path:
            sys.meta_path.append(finder)
        if spec.loader is not None and spec.origin is not None:  # else a folder without __init__
            sys.modules[top] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules[top])
            except BaseException:
                del sys.modules[top]
                raise
    return importlib.import_module(module)


def _find_file(text: str) -> Path | None:
    """Return the file of ``FILE.py:NAME``; None where a module is named."""
    match = _FILE.fullmatch(text)
    return None if match is None else Path(match["file"])


def _import_file(path: Path) -> ModuleType:
    """Import a file by its path; its neighbours are found where nothing else has their names."""
    where, name = str(path.resolve()), re.sub(r"\W", "_", path.stem)
    name = f"{name}_of_the_user" if name in sys.stdlib_module_names else name
    if getattr(sys.modules.get(name), "__file__", None) == where:
        return sys.modules[name]
    finder = NeighbourFinder(str(path.resolve().parent))
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        if before is not None:
            sys.modules[name] = before
    return module


def _find_local(top: str) -> ModuleSpec | None:
    """Return what the current folder has of a name that is not imported yet."""
    return None if top in sys.modules else PathFinder.find_spec(top, [str(Path.cwd())])


def _find_spec(module: str) -> ModuleSpec | None:
    """Return where a module is; packages above it are imported."""
    if package := module.rpartition(".")[0]:
        import_local(package)
    else:
        spec = _find_local(module)
        if spec is not None and spec.origin is not None:
            return spec
    return importlib.util.find_spec(module)


def find_source(name: str) -> Path | None:
    """Return the file so named, or the one that a function's spelling names; None for none."""
    if name and Path(name).is_file():
        return Path(name)
    if (file := _find_file(name)) is not None:
        return file if file.is_file() else None
    with suppress(ImportError, ValueError):
        spec = _find_spec(name.partition(":")[0].replace("-", "_"))
        if spec and spec.origin:
            return Path(spec.origin)
    return None


def digest_file(path: Path) -> str:
    """Digest a file's bytes."""
    with regular_file.open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()


def describe_error(error: BaseException) -> str:
    """Return an exception's type and text as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
