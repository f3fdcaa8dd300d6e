"""Dataclasses to JSON and back. A plugin is written as its file's name plus its fields."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog
from ortune.core.plugins.plugin import Plugin

T = TypeVar("T")


def encode(value: object) -> Any:
    """Turn a value of the core types into plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        tag = {"is": f"{value.folder}/{value.name()}"} if isinstance(value, Plugin) else {}
        return tag | data
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def decode(kind: type[T], data: object) -> T:
    """Build a value of `kind` from plain JSON data, checking every field.

    Raises:
        BadSettings: A field is unknown, missing or of another type.
    """
    return cast(T, convert(kind, data))


def build(kind: type[T], fields: Mapping[str, object]) -> T:
    """Call a dataclass with checked fields; what ``formerly`` names is read as it is now."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(cast(Any, kind))]
    label = kind.name() if issubclass(kind, Plugin) else kind.__name__
    formerly: Mapping[str, str] = getattr(kind, "formerly", {})
    fields = {formerly.get(key, key): value for key, value in fields.items()}
    if unknown := sorted(set(fields) - set(known)):
        raise BadSettings(
            f"{label} has no field '{', '.join(unknown)}'",
            fix=f"its fields are: {', '.join(known) or 'none'}",
        )
    checked = {}
    for key, value in fields.items():
        try:
            checked[key] = convert(hints[key], value)
        except BadSettings as error:
            raise BadSettings(f"{label}({key}=...): {error.what}", fix=error.fix) from None
    try:
        return kind(**checked)
    except TypeError as error:
        raise BadSettings(f"{label}: {error}", fix="give every field of it") from None


def digest(value: object) -> str:
    """Return 16 hex digits: equal values, equal names, on every machine."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def convert(kind: Any, data: Any) -> Any:
    """Check one value against an annotation and convert it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(data, Mapping) and "is" in data:
        fields = {key: value for key, value in data.items() if key != "is"}
        return build(catalog.find(str(data["is"]), fields), fields)
    if origin in (typing.Union, types.UnionType):
        return _union(args, data)
    if origin in (tuple, Sequence, list):
        return _sequence(args, data)
    if origin is not None and issubclass(_class(origin), Mapping):
        if not isinstance(data, Mapping):
            raise BadSettings(f"{data!r} is not a mapping", fix="give name: value pairs")
        return {key: convert(args[1], item) for key, item in data.items()}
    if origin is typing.Literal:
        if data in args:
            return data
        raise BadSettings(
            f"{data!r} is not allowed", fix=f"use one of {', '.join(map(str, args))}"
        )
    return _plain(kind, data)


def _class(origin: Any) -> type:
    return origin if isinstance(origin, type) else object


def _union(args: tuple[Any, ...], data: Any) -> Any:
    if data is None and type(None) in args:
        return None
    options = [arg for arg in args if arg is not type(None)]
    failed: BadSettings | None = None
    for option in options:
        try:
            return convert(option, data)
        except BadSettings as error:
            failed = error
    raise failed or BadSettings(f"{data!r} is not allowed", fix="leave the field out")


def _sequence(args: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise BadSettings(f"{data!r} is not a list", fix="write [a, b]")
    if (len(args) == 2 and args[1] is Ellipsis) or len(args) == 1:
        return tuple(convert(args[0], item) for item in data)
    if len(args) != len(data):
        raise BadSettings(f"{data!r} has {len(data)} items", fix=f"give {len(args)}")
    return tuple(convert(arg, item) for arg, item in zip(args, data, strict=True))


def _plain(kind: Any, data: Any) -> Any:
    if kind is Any or kind is object:
        return data
    if dataclasses.is_dataclass(kind):
        if isinstance(data, cast(type, kind)):
            return data
        if not isinstance(data, Mapping):
            name = getattr(kind, "folder", cast(type, kind).__name__)
            raise BadSettings(f"{data!r} is not one of {name}", fix="write name(field=value)")
        return build(cast(Any, kind), data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            options = ", ".join(str(item.value) for item in kind)
            raise BadSettings(f"{data!r} is not allowed", fix=f"use one of {options}") from None
    if kind is Path:
        return Path(data)
    wrong = not isinstance(data, kind) or (kind is int and isinstance(data, bool))
    if isinstance(kind, type) and wrong:
        raise BadSettings(f"{data!r} is not a {kind.__name__}", fix=f"give a {kind.__name__}")
    return data
