"""A request as a settings file, and back."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ortune.core.errors import OrtuneError
from ortune.core.plugins import user_file
from ortune.core.request import Request, RequestField, parameters

REPEAT = "ortune.toml"
"""Written into a run's folder; `ortune optimize RUN/ortune.toml` repeats the run."""


def read(
    path: Path, known: Collection[str], formerly: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Read a settings file.

    Args:
        path: The file.
        known: The keys it may have.
        formerly: Other words for keys, such as those of older files -> the key.

    Raises:
        OrtuneError: It is not TOML, or has a key that is not known.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OrtuneError(f"{path} is not TOML: {error}", fix="correct that line") from None
    found = {formerly.get(key, key): value for key, value in found.items()}
    if unknown := sorted(found.keys() - known):
        fix = f"use {', '.join(sorted(known))}"
        raise OrtuneError(f"{path}: unknown setting '{unknown[0]}'", fix=fix)
    return found


def write(request: Request, but: Collection[str] = ()) -> str:
    """Write the settings of a request; paths absolute, so that the file works from anywhere.

    Args:
        request: What was asked.
        but: Fields to leave out.
    """
    lines = []
    for one in parameters(type(request)):
        value = getattr(request, one.name)
        if (
            one.option.python
            or one.name in but
            or value is None
            or (isinstance(value, bool) and value is one.default)
        ):
            continue
        if callable(value):
            path = f"{value.__module__}:{value.__qualname__}"
            named = path.isascii() and re.fullmatch(r"(?!__main__)[\w.]+:\w+", path)
            lines.append(
                f"{one.name} = {json.dumps(path)}"
                if named
                else f"# {one.name} is a function of the program that asked: give --{one.name}"
            )
            continue
        spelled = one.reader.spell(value) if one.reader else value
        if spelled not in ((), [], "", {}):
            lines.append(f"{one.name} = {json.dumps(_portable(one, spelled))}")
    return "\n".join(lines) + "\n"


def _portable(one: RequestField, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_portable(one, item) for item in value]
    if not isinstance(value, (str, Path)):
        return value if isinstance(value, (int, float)) else str(value)
    text = str(value)
    path = (
        isinstance(value, Path)
        or (Path in one.kinds and Path(text).exists())
        or user_file.names_file(text.partition("(")[0])
    )
    return str(Path(text).absolute()) if path else text
