"""A manifest read by its form, without the classes that ortune reads it into."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ortune.core.errors import BadSettings, shortened
from ortune.engine.reader.tables import MANIFEST_FORM

_LARGEST = 1 << 64
"""Integers are below this."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
}


def decoded(raw: object) -> Any:
    """Return a manifest of plain data: an object with its fields as attributes.

    Raises:
        BadSettings: A field is unknown, missing or of another form.
    """
    return formed(MANIFEST_FORM, raw)


def formed(form: Mapping[str, Any], value: Any) -> Any:
    """Return a value of a form: objects with attributes, mappings, tuples, texts and numbers.

    Raises:
        BadSettings: It is of another form.
    """
    if "fields" in form:
        return _object(form, value)
    if "any" in form:
        return _any(form["any"], value)
    if "each" in form:
        _demand(isinstance(value, dict), value, "mapping")
        return {key: formed(form["each"], one) for key, one in value.items()}
    if "list" in form:
        _demand(isinstance(value, list), value, "list")
        return tuple(formed(form["list"], one) for one in value)
    if "items" in form:
        kinds = form["items"]
        _demand(isinstance(value, list) and len(value) == len(kinds), value, "list of its length")
        return tuple(formed(one, item) for one, item in zip(kinds, value, strict=True))
    kind = form["is"]
    truth = isinstance(value, bool) and kind != "bool"
    _demand(isinstance(value, _KINDS[kind]) and not truth, value, kind)
    _demand(not isinstance(value, int) or abs(value) < _LARGEST, value, "number of 64 bits")
    return value


def _object(form: Mapping[str, Any], value: Any) -> SimpleNamespace:
    _demand(isinstance(value, dict), value, "mapping")
    for name in value:
        _demand(name in form["fields"], name, "field")
    for name in form["needed"]:
        _demand(name in value, name, "field that is given")
    given = form["defaults"] | value
    return SimpleNamespace(**{name: formed(form["fields"][name], given[name]) for name in given})


def _any(forms: list[Mapping[str, Any]], value: Any) -> Any:
    for one in forms:
        try:
            return formed(one, value)
        except BadSettings as error:
            failed = error
    raise failed


def _demand(holds: bool, value: Any, what: str) -> None:
    if not holds:
        shown = shortened(repr(value) if isinstance(value, str) else type(value).__name__, 80)
        raise BadSettings(f"{shown} is no {what}", fix="pack the run again")
