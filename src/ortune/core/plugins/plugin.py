"""The one rule of extension, and how a plugin is written as JSON and on the command line.

What reads it back (`codec`, `spelling`) knows the catalog of plugins; what writes it does not.
"""

import dataclasses
import enum
import hashlib
import json
import re
from abc import ABC
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

WORD = re.compile(r"(?:\.{0,2}/|[A-Za-z_])[\w.:/-]*")
"""What is spelled without quotes."""

CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
"""Words that are values of their own."""


@dataclasses.dataclass(frozen=True)
class Plugin(ABC):
    """Fields are the whole configuration: equality, hash, JSON and CLI spelling follow.

    Attributes:
        folder: The package folder that holds the kind, such as ``quantizers``.
        origin: ``FILE.py:NAME`` of a class from a file of the user's; empty for all others.
        added: Fields that earlier runs do not know: at their defaults they are not written, and
            so the keys of those runs stay.
    """

    folder: ClassVar[str]
    origin: ClassVar[str] = ""
    added: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def name(cls) -> str:
        """Return the file name as the command line spells it, such as ``int8-static``."""
        return cls.origin or cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init_subclass__(cls, **more: object) -> None:
        """Print as spelled in lists and at a prompt too, not as `dataclass` would."""
        super().__init_subclass__(**more)
        cls.__repr__ = Plugin.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Return the command-line spelling; fields at their defaults are left out."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                parts.append(f"{field.name}={spell_value(value)}")
        return f"{self.name()}({', '.join(parts)})" if parts else self.name()


def find_plugins(value: object) -> Iterator[Plugin]:
    """Yield the plugins in a value: itself, and those in its fields at any depth."""
    if isinstance(value, Plugin):
        yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from find_plugins(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_plugins(item)


def spell_value(value: object) -> str:
    """Write one field's value so that `spelling.parse` reads it back."""
    if isinstance(value, Plugin):
        return Plugin.__str__(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(spell_value, value))}]"
    if isinstance(value, str):
        plain = WORD.fullmatch(value) and value not in CONSTANTS
        return str(value) if plain else json.dumps(value)
    return json.dumps(encode(value))


def encode(value: object) -> Any:
    """Turn a value of the core types into plain JSON data; a plugin is its name and its fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        added = getattr(type(value), "added", ())
        defaults = {f.name: f.default for f in dataclasses.fields(value) if f.name in added}
        kept = {k: item for k, item in fields.items() if k not in defaults or defaults[k] != item}
        tag = {"is": f"{value.folder}/{value.name()}"} if isinstance(value, Plugin) else {}
        return tag | {name: encode(item) for name, item in kept.items()}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def digest(value: object) -> str:
    """Return 16 hex digits: equal values, equal names, on every machine."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
