"""Protocol buffers' text format, as far as a ``config.pbtxt`` needs it.

A message is a mapping of field to value; a sequence stands for a repeated field. Written are
texts, numbers, truths, `Word` for the names of enumerations, and messages. What is read back has a
list for every field, as the text does not say which ones are repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ortune.core.errors import BadModel

Message: TypeAlias = Mapping[str, Any]

_TOKEN = re.compile(
    r'\s*(?:#[^\n]*\n\s*)*(?P<token>"(?:[^"\\\n]|\\.)*"|-?\d+|[A-Za-z_]\w*|[{}\[\]:,])'
)
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_PLAIN = frozenset(range(0x20, 0x7F)) - set(b'"\\')
_DEEPEST = 32


class Word(str):
    """The name of an enumeration's value: written without quotes."""


def write(message: Message, indent: str = "") -> str:
    """Return a message as text, fields in the order given."""
    return "".join(_field(name, value, indent) for name, value in message.items())


def _field(name: str, value: object, indent: str) -> str:
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{write(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            return "".join(_field(name, one, indent) for one in value)
        return f"{indent}{name}: [{', '.join(map(_scalar, value))}]\n" if value else ""
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word | int):
        return str(value)
    return quoted(str(value))


def quoted(text: str) -> str:
    """Return a text in quotes; all but plain ASCII as octal bytes: a stranger wrote the names."""
    parts = (chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(parts)}"'


def read(text: str) -> dict[str, list[Any]]:
    """Read a message.

    Raises:
        BadModel: It is none.
    """
    tokens = _tokens(text)
    return _message(tokens, "", 0)


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            if text[at:].lstrip().startswith("#"):
                break
            raise _wrong(f"at byte {at}")
        at = found.end()
        yield found["token"]
    yield ""


def _message(tokens: Iterator[str], closing: str, depth: int) -> dict[str, list[Any]]:
    if depth > _DEEPEST:
        raise _wrong("it is nested too deeply")
    found: dict[str, list[Any]] = {}
    while (name := next(tokens, "")) != closing:
        if not name.isidentifier():
            raise _wrong(f"a field is expected in place of '{name}'")
        token = next(tokens, "")
        if token == ":":
            token = next(tokens, "")
        found.setdefault(name, []).extend(_values(tokens, token, depth))
    return found


def _values(tokens: Iterator[str], token: str, depth: int) -> list[Any]:
    if token == "{":
        return [_message(tokens, "}", depth + 1)]
    if token != "[":
        return [_value(token)]
    values: list[Any] = []
    while (token := next(tokens, "")) != "]":
        if token == "{":
            values.append(_message(tokens, "}", depth + 1))
        elif token != ",":
            values.append(_value(token))
    return values


def _value(token: str) -> str | int | bool:
    if token.startswith('"'):
        raw = _ESCAPE.sub(_unescaped, token[1:-1])
        return raw.encode("latin-1").decode("utf-8", "replace")
    if token in ("true", "false"):
        return token == "true"
    if re.fullmatch(r"-?\d{1,20}", token):
        return int(token)
    if not token.isidentifier():
        raise _wrong(f"a value is expected in place of '{token}'")
    return Word(token)


def _unescaped(found: re.Match[str]) -> str:
    text = found[1]
    return chr(int(text, 8)) if len(text) == 3 else {"n": "\n", "t": "\t"}.get(text, text)


def _wrong(why: str) -> BadModel:
    return BadModel(f"config.pbtxt cannot be read: {why}", fix="pack again")
