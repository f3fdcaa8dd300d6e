"""Steps in a Python file of the user's, spelled ``FILE.py:NAME``.

The file is code, and runs only when a person names it: what is read from a ledger or a bundle
becomes a stand-in that has the spelling and cannot be applied.
"""

import dataclasses
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ortune.core import regular_file
from ortune.core.errors import BadSettings, Refused, UnknownPlugin, find_nearest, with_article
from ortune.core.plugins.plugin import Plugin
from ortune.core.plugins.user_function import NeighbourFinder, describe_error

P = TypeVar("P", bound=Plugin)

_SPELLED = re.compile(r"(?P<file>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?")
_LARGEST = 1 << 24
"""Bytes of a file of Python."""
_DIGEST = "__ortune_digest__"


def names_file(text: str) -> bool:
    """Say whether a step's name is of this kind; the name behind the colon may be missing."""
    return _SPELLED.fullmatch(text) is not None


def load_user_class(base: type[P], text: str) -> type[P]:
    """Run the file and return the class that it gives a name to.

    A file of another content is loaded anew.

    Raises:
        UnknownPlugin: There is no such file, or nothing of that kind and name in it.
        BadSettings: The file does not run.
    """
    spelled = _SPELLED.fullmatch(text)
    path = Path(spelled["file"] if spelled else text)
    name = spelled["name"] if spelled else None
    return _load_class(base, text, path, name, str(path.resolve()), _read_file(path))


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; the same content runs once, wherever it lies.

    Raises:
        UnknownPlugin: There is no such file.
        BadSettings: It does not run.
    """
    content = _read_file(path)
    return _run_module(path, str(path.resolve()), content, hashlib.sha256(content).hexdigest())


def _read_file(path: Path) -> bytes:
    try:
        return regular_file.read_bytes(path, _LARGEST, BadSettings)
    except OSError:
        raise UnknownPlugin(
            f"no file '{path}'", fix="give the path of a Python file, such as ./my_rules.py:NAME"
        ) from None


def stand_in(base: type[P], text: str, fields: Iterable[str]) -> type[P]:
    """Return a class that is spelled and stored like one that is gone or is not to be run.

    Raises:
        BadSettings: A field has a name that no field can have.
    """
    fields = list(fields)
    reserved = set(dir(base)) - {field.name for field in dataclasses.fields(base)}
    for name in fields:
        if not name.isidentifier() or iskeyword(name) or name in reserved:
            raise BadSettings(f"{text!r} has no field {name!r}", fix="correct the name")

    def apply(step: Plugin, *_: object) -> int:
        raise Refused(
            f"{text} comes from a stored result; its code is missing, or is not run for safety",
            fix="name the step on the command line, or load it by its spelling",
        )

    parts: dict[str, Any] = dict.fromkeys(getattr(base, "__abstractmethods__", ()), apply)
    cls = dataclasses.make_dataclass(
        re.sub(r"\W", "_", Path(text).name.rpartition(":")[2], flags=re.ASCII),
        [(name, Any, dataclasses.field(default=None)) for name in fields],
        bases=(base,),
        namespace={**parts, "origin": text, "__doc__": f"{text!a}, as it was stored."},
        frozen=True,
    )
    cls.__module__ = __name__
    result: type[P] = cls
    return result


def read_file_digest(cls: type[Plugin]) -> str:
    """Return the digest of the file's text as it was when the class was loaded."""
    return str(getattr(sys.modules[cls.__module__], _DIGEST, ""))


def locate_error(error: BaseException, path: Path) -> str:
    """Return where in a file an exception arose and what it says, in one line."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path} line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    at = next((frame.lineno for frame in frames if frame.filename == str(path.resolve())), None)
    return f"{path}{f' line {at}' if at else ''}: {describe_error(error)}"


@cache
def _load_class(
    base: type[P], text: str, path: Path, name: str | None, full: str, content: bytes
) -> type[P]:
    key = hashlib.sha256(full.encode() + content).hexdigest()
    module = _run_module(path, full, content, key)
    classes = {
        key: item
        for key, item in vars(module).items()
        if inspect.isclass(item) and issubclass(item, base) and item is not base
    }
    if name is None or name not in classes:
        kind = base.__name__.lower()
        if name is None:
            problem = f"'{path}' is a file, and the {kind} in it is not named"
        elif hasattr(module, name):
            problem = f"'{name}' in {path} is not {with_article(kind)}"
        else:
            problem = f"{path} has no '{name}'"
        raise UnknownPlugin(problem, fix=_suggest_names(path, name, list(classes)))
    cls = classes[name]
    if inspect.isabstract(cls):
        lacking = ", ".join(sorted(cls.__abstractmethods__))
        raise BadSettings(f"{text} does not define {lacking}", fix=f"give it {lacking}")
    namespace = {"origin": text, "__module__": module.__name__, "__doc__": cls.__doc__}
    subclass: type[P] = type(cls.__name__, (cls,), namespace)
    return subclass


def _run_module(path: Path, full: str, content: bytes, key: str) -> ModuleType:
    """Run the file as a module of its own, which finds its neighbours meanwhile."""
    called = f"_ortune_file_{key[:16]}"
    if called in sys.modules:
        return sys.modules[called]
    module = ModuleType(called)
    module.__file__ = full
    setattr(module, _DIGEST, hashlib.sha256(content).hexdigest()[:16])
    neighbours = NeighbourFinder(str(Path(full).parent))
    sys.modules[called] = module
    sys.meta_path.append(neighbours)
    try:
        exec(compile(content, full, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[called]
        raise BadSettings(
            f"cannot load {locate_error(error, path)}",
            fix="correct the file; `python FILE` shows more",
        ) from error
    finally:
        sys.meta_path.remove(neighbours)
    return module


def _suggest_names(path: Path, name: str | None, names: list[str]) -> str:
    public_names = [candidate for candidate in names if not candidate.startswith("_")]
    if not public_names:
        return f"make one in it: NAME = ortune.rule(pattern, rewrite), then write {path}:NAME"
    near = find_nearest(name or "", public_names) or public_names
    return f"write {' or '.join(f'{path}:{candidate}' for candidate in near)}"
