"""JSON to dataclasses; `encode` and `digest`, the other direction, stand with the plugins."""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from ortune.core.errors import BadSettings, suggest_names, with_article
from ortune.core.plugins import bounds, catalog
from ortune.core.plugins.plugin import Plugin, digest, encode

__all__ = ["build_dataclass", "decode", "digest", "encode"]

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
    return cast(T, _convert_value(kind, data, known_only))


def build_dataclass(
    kind: type[T], arguments: Mapping[str, object], *, known_only: bool = False
) -> T:
    """Call a dataclass with checked fields; what its ``formerly`` names is read as it is now.

    A former field that it names with nothing behind it is left out.

    Raises:
        BadSettings: As `decode`.
    """
    dataclass = cast(Any, kind)
    hints, fields = _hints(dataclass), [f.name for f in dataclasses.fields(dataclass)]
    label = kind.name() if issubclass(kind, Plugin) else kind.__name__.lstrip("_")
    formerly: Mapping[str, str] = getattr(kind, "formerly", {})
    arguments = {
        formerly.get(key, key): value
        for key, value in arguments.items()
        if formerly.get(key) != ""
    }
    if known_only:
        arguments = {key: value for key, value in arguments.items() if key in fields}
    if unknown := sorted(arguments.keys() - set(fields)):
        raise BadSettings(
            f"{label} has no field '{', '.join(unknown)}'",
            fix=suggest_names(unknown[0], fields) or f"write {label} alone: it has none",
        )
    checked = {}
    for key, value in arguments.items():
        try:
            checked[key] = _convert_value(hints[key], value, known_only)
        except BadSettings as error:
            raise BadSettings(f"{label}({key}=...): {error.what}", fix=error.fix) from None
    none = dataclasses.MISSING
    required = [f for f in dataclasses.fields(dataclass) if f.default is f.default_factory is none]
    if missing := [f.name for f in required if f.name not in checked]:
        raise BadSettings(f"{label} lacks '{', '.join(missing)}'", fix="give these fields too")
    instance = kind(**checked)
    check_numbers(instance, checked)
    return instance


def check_numbers(instance: object, field_names: Collection[str], *, here: bool = False) -> None:
    """Check the numbers of a dataclass against the bounds that its fields declare.

    A plugin's field that declares none takes what `Bounds` allows by default.

    Args:
        here: Threads are counted against the CPUs of this machine.

    Raises:
        BadSettings: One is not finite, or out of bounds.
    """
    kind: Any = type(instance)
    default, label = None, kind.__name__
    if isinstance(instance, Plugin):
        default, label = bounds.Bounds(), instance.name()
    for name, limits in bounds.read_field_bounds(kind, default).items():
        if name in field_names:
            try:
                limits.check(getattr(instance, name), here=here)
            except BadSettings as error:
                raise BadSettings(f"{label}({name}=...): {error.what}", fix=error.fix) from None


def make_jsonable(value: object) -> Any:
    """Encode what JSON can hold: arrays become lists, NaN and infinity None."""
    value = encode(value)
    if isinstance(value, Mapping):
        return {key: make_jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [make_jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return make_jsonable(value) if isinstance(value, list) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _convert_value(kind: Any, data: Any, known_only: bool) -> Any:
    """Check one value against an annotation and convert it."""
    if type(data) is kind and kind is not int:
        return data
    if kind is int or kind is float:  # most of what is stored
        return _convert_plain(kind, data)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    keyed = isinstance(origin, type) and issubclass(origin, Mapping)
    if isinstance(data, Mapping) and "is" in data and not keyed:
        return _build_plugin(kind, args, data, known_only)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, data, known_only)
    if origin in (tuple, Sequence, list):
        return _convert_sequence(args, data, known_only)
    if keyed:
        if not isinstance(data, Mapping):
            raise BadSettings(f"{data!r:.80} is not a mapping", fix="give name: value pairs")
        return {key: _convert_value(args[1], item, known_only) for key, item in data.items()}
    if origin is typing.Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return _convert_choice(kind, args or tuple(kind), data)
    if not dataclasses.is_dataclass(kind):
        return _convert_plain(kind, data)
    if isinstance(data, cast(type, kind)):
        return data
    if not isinstance(data, Mapping) or "folder" in vars(kind):  # the class of a whole folder
        name = getattr(kind, "folder", cast(type, kind).__name__)
        raise BadSettings(f"{data!r:.80} is not one of {name}", fix="write name(field=value)")
    return build_dataclass(cast(type, kind), data, known_only=known_only)


def _build_plugin(
    kind: Any, args: tuple[Any, ...], data: Mapping[str, Any], known_only: bool
) -> Plugin:
    """Build a stored plugin, once it is known to be of the kind that the field wants."""
    fields = {key: value for key, value in data.items() if key != "is"}
    cls = catalog.find_plugin_class(str(data["is"]), fields)
    bases = [base for base in args or (kind,) if base is not Any]
    if bases and not any(isinstance(base, type) and issubclass(cls, base) for base in bases):
        base = next((base.__name__ for base in bases if isinstance(base, type)), "value")
        raise BadSettings(
            f"'{data['is']}' is not {with_article(base.lower())}",
            fix=f"name a {base.lower()} in its place",
        )
    return build_dataclass(cls, fields, known_only=known_only)


def _convert_union(args: tuple[Any, ...], data: Any, known_only: bool) -> Any:
    if data is None and type(None) in args:
        return None
    failed = BadSettings(f"{data!r:.80} is not allowed", fix="leave the field out")
    for option in args:
        if option is not type(None):
            try:
                return _convert_value(option, data, known_only)
            except BadSettings as error:
                failed = error
    raise failed


def _convert_sequence(args: tuple[Any, ...], data: Any, known_only: bool) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise BadSettings(f"{data!r:.80} is not a list", fix="write [a, b]")
    kinds = [args[0]] * len(data) if len(args) == 1 or args[1] is Ellipsis else args
    if len(kinds) != len(data):
        raise BadSettings(f"{data!r:.80} is of length {len(data)}", fix=f"give {len(kinds)}")
    return tuple(
        _convert_value(arg, item, known_only) for arg, item in zip(kinds, data, strict=True)
    )


def _convert_choice(kind: Any, options: tuple[Any, ...], data: Any) -> Any:
    for option in options:
        if data == (option.value if isinstance(option, enum.Enum) else option):
            return option
    named = ", ".join(str(getattr(option, "value", option)) for option in options)
    raise BadSettings(f"{data!r:.80} is not allowed", fix=f"use one of {named}")


_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _convert_plain(kind: Any, data: Any) -> Any:
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
        expected = with_article(_NAMES.get(kind, kind.__name__))
        raise BadSettings(f"{data!r:.80} is not {expected}", fix=f"give {expected}")
    return data
