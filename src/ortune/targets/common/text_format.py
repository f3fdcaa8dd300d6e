"""Protocol buffers' text format, as far as a ``config.pbtxt`` needs it.

A message is a mapping of field to value; a sequence stands for a repeated field. Written are
texts, numbers, truths, `Word` for the names of enumerations, and messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = frozenset(range(0x20, 0x7F)) - set(b'"\\')


class Word(str):
    """The name of an enumeration's value: written without quotes."""


def spell_message(message: Mapping[str, Any], indent: str = "") -> str:
    """Return a message as text, fields in the order given."""
    return "".join(_spell_field(name, value, indent) for name, value in message.items())


def _spell_field(name: str, value: object, indent: str) -> str:
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{spell_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            return "".join(_spell_field(name, one, indent) for one in value)
        return f"{indent}{name}: [{', '.join(map(_spell_scalar, value))}]\n" if value else ""
    return f"{indent}{name}: {_spell_scalar(value)}\n"


def _spell_scalar(value: object) -> str:
    """Write a value; of texts all but plain ASCII as octal bytes: a stranger wrote the names."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Word | int):
        return str(value)
    parts = (chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in str(value).encode())
    return f'"{"".join(parts)}"'
