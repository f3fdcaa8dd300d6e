"""What the reader in one file needs of classes that it does not have, as plain data."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.plugins import catalog, codec, stored
from ortune.core.version import __version__
from ortune.engine.manifest import Manifest

VERSION: str = __version__
"""Of the ortune that the reader is a part of."""


def form(kind: Any) -> dict[str, Any]:
    """Return an annotation as plain data, by which `ortune.engine.reader.forms` checks values.

    Args:
        kind: A dataclass, or the annotation of one of its fields.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _fields(kind)
    if origin in (typing.Union, types.UnionType):
        return {"any": [form(one) for one in args]}
    if origin is tuple and args[-1] is Ellipsis:
        return {"list": form(args[0])}
    if origin is tuple:
        return {"items": [form(one) for one in args]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"each": form(args[1])}
    return {"is": "None" if kind is type(None) else kind.__name__}


def _fields(kind: Any) -> dict[str, Any]:
    hints, found, needed, defaults = typing.get_type_hints(kind), {}, [], {}
    for field in dataclasses.fields(kind):
        found[field.name] = form(hints[field.name])
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = codec.encode(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = codec.encode(field.default_factory())
        else:
            needed.append(field.name)
    return {"fields": found, "needed": needed, "defaults": defaults}


def _defaults(backend: Any) -> dict[str, Any]:
    """Return every field, those too that are not written at their defaults."""
    names = (field.name for field in dataclasses.fields(backend))
    return {name: codec.encode(getattr(backend, name)) for name in names}


MANIFEST_FORM: Mapping[str, Any] = form(Manifest)
"""The manifest's fields, as `form` gives them."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cpu": _defaults(Cpu()),
    "openvino": _defaults(Openvino()),
}
"""Backend that the reader runs -> its fields, as they are where nothing is set."""
BACKENDS: Mapping[str, Mapping[str, Any]] = {
    name: stored.rules(catalog.load(Backend, name))
    for name in catalog.names(Backend)
    if catalog.modules(Backend.folder)[name].startswith("ortune.")
}
"""Backend -> field -> what a file may set it to."""
