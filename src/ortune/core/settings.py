"""A request as a settings file, and back."""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ortune.core import regular_file
from ortune.core.errors import OrtuneError, shorten_text, suggest_names
from ortune.core.plugins import user_file
from ortune.core.request import Request, RequestField, list_request_fields

_BACKENDS = ("on", "baseline")
"""Keys of all verbs that spell backends."""
_TYPED = "do not trust this file, or type the setting on the command line"
_LARGEST = 1 << 16
"""Bytes of a settings file. Ours have a few hundred; long keys take quadratic time."""
_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
REPEAT = "ortune.toml"
"""Written into a run's folder; `ortune optimize RUN/ortune.toml` repeats the run."""


def read_settings(
    path: Path,
    allowed: Collection[str],
    formerly: Mapping[str, str] = MappingProxyType({}),
    refuse_key: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Read a settings file.

    Args:
        allowed: The keys it may have.
        formerly: Other words for keys, such as those of older files -> the key; empty where
            nothing asks for it any more.
        refuse_key: May say more of a key that is not known, by an error of its own.

    Raises:
        OrtuneError: It is not TOML, has a key that is not known, or sets a backend as only a
            person may who types it.
    """
    try:
        values = tomllib.loads(
            regular_file.read_bytes(path, _LARGEST, OrtuneError).decode("utf-8")
        )
    except ValueError as error:  # also of bytes that are no text, and of endless numbers
        raise OrtuneError(f"{path} is not TOML: {error}", fix="correct that line") from None
    except RecursionError:
        raise OrtuneError(f"{path} is nested too deeply", fix="write it flat") from None
    values = {
        formerly.get(key, key): value for key, value in values.items() if formerly.get(key) != ""
    }
    if unknown := sorted(values.keys() - allowed):
        if refuse_key is not None:
            refuse_key(unknown[0])
        fix = suggest_names(unknown[0], sorted(allowed))
        raise OrtuneError(f"{path}: unknown setting '{unknown[0]}'", fix=fix)
    if values.get("executor", "local") != "local" or values.get("devices"):
        raise OrtuneError(f"{path} asks for an executor, which connects to machines", fix=_TYPED)
    if values.get("cache"):
        raise OrtuneError(f"{path} asks for a cache, which is read and written", fix=_TYPED)
    if values.get("unsafe_pickle"):
        raise OrtuneError(f"{path} asks for unsafe_pickle, which runs code", fix=_TYPED)
    # A file sets a backend as a file may: nothing that a person has to type.
    from ortune.core.backend import Backend
    from ortune.core.plugins import codec, spelling, stored

    for key in _BACKENDS:
        setting = values.get(key, ())
        texts = setting if isinstance(setting, list) else [setting]
        backends: list[Backend] = []
        with suppress(OrtuneError):  # what cannot be read is the option's to say
            for text in (item for item in texts if isinstance(item, str) and "(" in item):
                backends += (backend for backend, _ in spelling.parse_list(Backend, text))
        for backend in backends:
            stored.demand_safe_data(codec.encode(backend), f"{path}: {key}", fix=_TYPED)
    return values


def demand_typed(path: Path, key: str, value: Any, types: tuple[type, ...]) -> None:
    """Refuse a value of a type that the setting does not take.

    Args:
        types: The types it may have; bool counts as itself alone.

    Raises:
        OrtuneError: It has another type, is a number beyond 64 bits or a text with a NUL in it.
    """
    right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    large = isinstance(value, int) and abs(value) >= 1 << 63
    if not right or large or (isinstance(value, str) and "\0" in value):
        kinds = " or ".join(_KINDS[kind] for kind in types)
        raise OrtuneError(
            f"{path}: {key} = {shorten_text(repr(value), 60)} is not {kinds}",
            fix="correct that line; `ortune VERB --help` describes every setting",
        )


def format_settings(request: Request, but: Collection[str] = ()) -> str:
    """Write the settings of a request; paths absolute, so that the file works from anywhere.

    Args:
        but: Fields to leave out.
    """
    lines = []
    for spec in list_request_fields(type(request)):
        value = getattr(request, spec.name)
        if (
            spec.option.python
            or spec.name in but
            or value is None
            or (isinstance(value, bool) and value is spec.default)
        ):
            continue
        if callable(value):
            path = f"{value.__module__}:{value.__qualname__}"
            named = path.isascii() and re.fullmatch(r"(?!__main__)[\w.]+:\w+", path)
            lines.append(
                f"{spec.name} = {json.dumps(path)}"
                if named
                else f"# {spec.name} is a function of the program that asked: give --{spec.name}"
            )
            continue
        spelled = spec.reader.spell(value) if spec.reader else value
        if spelled not in ((), [], "", {}):
            lines.append(f"{spec.name} = {json.dumps(_make_portable(spec, spelled))}")
    return "\n".join(lines) + "\n"


def _make_portable(spec: RequestField, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_make_portable(spec, item) for item in value]
    if not isinstance(value, (str, Path)):
        return value if isinstance(value, (int, float)) else str(value)
    text = str(value)
    path = (
        isinstance(value, Path)
        or (Path in spec.kinds and Path(text).exists())
        or user_file.names_file(text.partition("(")[0])
    )
    return str(Path(text).absolute()) if path else text
