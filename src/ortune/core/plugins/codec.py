"""JSON to dataclasses; `encode` and `digest`, the other direction, stand with the plugins."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from ortune.core.errors import BadSettings, with_article
from ortune.core.plugins import bounds, catalog
from ortune.core.plugins.plugin import Plugin, digest, encode

__all__ = ["build", "decode", "digest", "encode"]

T = TypeVar("T")

_hints = cache(typing.get_type_hints)
_LARGEST = 1 << 64
"""Integers are below this: larger ones can neither be divided nor written everywhere."""


def decode(kind: type[T], data: object, *, known_only: bool = False) -> T:
    """Build a value of `kind` from plain JSON data, checking every field.

    Args:
        kind: A dataclass, or another annotation of a field.
        data: What `encode` gave, or a person wrote.
        known_only: Leave out what is no field, instead of refusing it.

    Raises:
        BadSettings: A field is unknown, missing, of another type or out of its bounds.
    """
    return cast(T, _convert(kind, data, known_only))


def build(kind: type[T], given: Mapping[str, object], *, known_only: bool = False) -> T:
    """Call a dataclass with checked fields; what its ``formerly`` names is read as it is now.

    Raises:
        BadSettings: As `decode`.
    """
    dataclass = cast(Any, kind)
    hints, fields = _hints(dataclass), [f.name for f in dataclasses.fields(dataclass)]
    label = kind.name() if issubclass(kind, Plugin) else kind.__name__.lstrip("_")
    formerly: Mapping[str, str] = getattr(kind, "formerly", {})
    given = {formerly.get(key, key): value for key, value in given.items()}
    if known_only:
        given = {key: value for key, value in given.items() if key in fields}
    if unknown := sorted(given.keys() - set(fields)):
        raise BadSettings(
            f"{label} has no field '{', '.join(unknown)}'",
            fix=f"its fields are: {', '.join(fields) or 'none'}",
        )
    checked = {}
    for key, value in given.items():
        try:
            checked[key] = _convert(hints[key], value, known_only)
        except BadSettings as error:
            raise BadSettings(f"{label}({key}=...): {error.what}", fix=error.fix) from None
    if missing := [name for name in _required(dataclass) if name not in checked]:
        raise BadSettings(f"{label} lacks '{', '.join(missing)}'", fix="give every field of it")
    made = kind(**checked)
    check_numbers(made, checked)
    return made


def check_numbers(made: object, given: Collection[str], *, here: bool = False) -> None:
    """Check the numbers of a dataclass against the bounds that its fields declare.

    A plugin's field that declares none takes what `Bounds` allows by default.

    Args:
        made: The value.
        given: The fields that were written out.
        here: Threads are counted against the CPUs of this machine.

    Raises:
        BadSettings: One is not finite, or out of bounds.
    """
    plugin = isinstance(made, Plugin)
    kind: Any = type(made)
    for name, one in bounds.of(kind, bounds.Bounds() if plugin else None).items():
        if name in given:
            try:
                one.check(getattr(made, name), here=here)
            except BadSettings as error:
                label = made.name() if isinstance(made, Plugin) else type(made).__name__
                raise BadSettings(f"{label}({name}=...): {error.what}", fix=error.fix) from None


def jsonable(value: object) -> Any:
    """Encode what JSON can hold: arrays become lists, NaN and infinity None."""
    value = encode(value)
    if isinstance(value, Mapping):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return jsonable(value) if isinstance(value, list) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _required(kind: Any) -> list[str]:
    none = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is none]


def _convert(kind: Any, data: Any, known_only: bool) -> Any:
    """Check one value against an annotation and convert it."""
    if type(data) is kind and kind is not int:
        return data
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    keyed = isinstance(origin, type) and issubclass(origin, Mapping)
    if isinstance(data, Mapping) and "is" in data and not keyed:
        return _plugin(kind, args, data, known_only)
    if origin in (typing.Union, types.UnionType):
        return _union(args, data, known_only)
    if origin in (tuple, Sequence, list):
        return _sequence(args, data, known_only)
    if keyed:
        if not isinstance(data, Mapping):
            raise BadSettings(f"{data!r:.80} is not a mapping", fix="give name: value pairs")
        return {key: _convert(args[1], item, known_only) for key, item in data.items()}
    if origin is typing.Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return _choice(kind, args or tuple(kind), data)
    if dataclasses.is_dataclass(kind):
        return _instance(cast(type, kind), data, known_only)
    return _plain(kind, data)


def _plugin(kind: Any, args: tuple[Any, ...], data: Mapping[str, Any], known_only: bool) -> Plugin:
    """Build a stored plugin, once it is known to be of the kind that the field wants."""
    fields = {key: value for key, value in data.items() if key != "is"}
    found = catalog.find(str(data["is"]), fields)
    wanted = [one for one in args or (kind,) if one is not Any]
    if wanted and not any(isinstance(one, type) and issubclass(found, one) for one in wanted):
        one = next((one.__name__ for one in wanted if isinstance(one, type)), "value")
        raise BadSettings(
            f"'{data['is']}' is no {one.lower()}", fix=f"name a {one.lower()} in its place"
        )
    return build(found, fields, known_only=known_only)


def _union(args: tuple[Any, ...], data: Any, known_only: bool) -> Any:
    if data is None and type(None) in args:
        return None
    failed = BadSettings(f"{data!r:.80} is not allowed", fix="leave the field out")
    for option in args:
        if option is not type(None):
            try:
                return _convert(option, data, known_only)
            except BadSettings as error:
                failed = error
    raise failed


def _sequence(args: tuple[Any, ...], data: Any, known_only: bool) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise BadSettings(f"{data!r:.80} is not a list", fix="write [a, b]")
    kinds = [args[0]] * len(data) if len(args) == 1 or args[1] is Ellipsis else args
    if len(kinds) != len(data):
        raise BadSettings(f"{data!r:.80} is of length {len(data)}", fix=f"give {len(kinds)}")
    return tuple(_convert(arg, item, known_only) for arg, item in zip(kinds, data, strict=True))


def _choice(kind: Any, options: tuple[Any, ...], data: Any) -> Any:
    for option in options:
        if data == (option.value if isinstance(option, enum.Enum) else option):
            return option
    named = ", ".join(str(getattr(option, "value", option)) for option in options)
    raise BadSettings(f"{data!r:.80} is not allowed", fix=f"use one of {named}")


def _instance(kind: type, data: Any, known_only: bool) -> Any:
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping) or "folder" in vars(kind):  # the class of a whole folder
        name = getattr(kind, "folder", kind.__name__)
        raise BadSettings(f"{data!r:.80} is not one of {name}", fix="write name(field=value)")
    return build(kind, data, known_only=known_only)


_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _plain(kind: Any, data: Any) -> Any:
    if kind is Any or kind is object:
        return data
    if kind is Path:
        return Path(data)
    if type(data) is int and abs(data) >= _LARGEST:
        raise BadSettings("the number is too large", fix="give one of 64 bits")
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    wrong = isinstance(kind, type) and not isinstance(data, kind)
    if wrong or (kind is int and isinstance(data, bool)):
        wanted = with_article(_NAMES.get(kind, kind.__name__))
        raise BadSettings(f"{data!r:.80} is not {wanted}", fix=f"give {wanted}")
    return data
