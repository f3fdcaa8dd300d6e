"""The command-line spelling of plugins: ``name(field=value, other=nested(field=[1, 2]))``.

Grammar::

    plugin := NAME [ "(" [ field { "," field } ] ")" ]
    field  := NAME "=" value
    value  := plugin | list | JSON number, string, true, false, null
    list   := "[" [ value { "," value } ] "]"

A list of backends may say where each runs: ``plugin [ "in" ENVIRONMENT ]``.

A bare word is a string unless the field wants a plugin. NAME is letters, digits and ``-_.:/``; a
path may begin with ``/``, ``./`` or ``../``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, shortened
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.plugin import CONSTANTS, WORD, Plugin, spell

P = TypeVar("P", bound=Plugin)

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?(?![\w.])")
_SHOWN = 300
_DEEPEST = 32
"""Values in values, as in ``bucketed(inner=cpu(config=[["a", "b"]]))``, which has four."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLACE = re.compile(r"in\s+[a-z0-9][a-z0-9.-]*(?!\w)")
"""Where a backend is to run; names as `measurement.environment` takes them."""


@dataclasses.dataclass(frozen=True)
class _Call:
    """A parsed ``name(field=value)`` whose name is not resolved yet."""

    name: str
    fields: Mapping[str, Any]
    bare: bool = False


def parse(base: type[P], text: str) -> P:
    """Read one plugin, such as ``int8-static(observer=percentile(p=99.9))``.

    Raises:
        BadSettings: The text does not follow the grammar, or a field is wrong.
        UnknownPlugin: No such plugin.
    """
    return parse_given(base, text)[0]


def parse_given(base: type[P], text: str) -> tuple[P, frozenset[str]]:
    """Like `parse`, and say which fields were written out: they are pinned in a search."""
    reader = _Reader(text)
    call = reader.call()
    reader.end()
    return _make(base, call), frozenset(call.fields)


def parse_list(base: type[P], text: str) -> list[tuple[P, frozenset[str]]]:
    """Read plugins separated by commas, such as ``cpu(threads=1),openvino``."""
    reader = _Reader(text)
    found = [reader.call()]
    while reader.take(","):
        found.append(reader.call())
    reader.end()
    return [(_make(base, call), frozenset(call.fields)) for call in found]


def parse_placed(base: type[P], text: str) -> list[tuple[P, frozenset[str], str]]:
    """Read plugins as `parse_list`, each with its environment: ``cpu,openvino in vino``."""
    return [(_make(base, call), frozenset(call.fields), at) for call, at in _placed(text)]


@cache
def places(text: str) -> Mapping[str, str]:
    """Return name -> environment of those plugins of a list that are said to be in one."""
    return {call.name: at for call, at in _placed(text) if at != HERE}


def _placed(text: str) -> list[tuple[_Call, str]]:
    reader = _Reader(text)
    found = [(reader.call(), reader.place())]
    while reader.take(","):
        found.append((reader.call(), reader.place()))
    reader.end()
    return found


def with_field(text: str, field: str, value: object) -> str:
    """Write one more field into every plugin of a list; what is written out stays so.

    Raises:
        BadSettings: The text does not follow the grammar.
    """
    reader, parts, more = _Reader(text), [], True
    while more:
        start = reader.at
        call = reader.call()
        written = text[start : reader.at].strip()
        extra = f"{field}={spell(value)}"
        if not call.bare:
            written = written[:-1].rstrip().rstrip(",")
            extra = f"{', ' if call.fields else ''}{extra})"
        place = reader.place()
        where = "" if place == HERE else f" in {place}"
        parts.append((f"{written}({extra})" if call.bare else written + extra) + where)
        more = reader.take(",")
    reader.end()
    return ",".join(parts)


def _make(base: type[P], call: _Call) -> P:
    """Build the plugin that a call names."""
    cls = catalog.load(base, call.name)
    hints = typing.get_type_hints(cls)
    fields = {key: _resolve(hints.get(key), value) for key, value in call.fields.items()}
    made = codec.build(cls, fields)
    codec.check_numbers(made, fields, here=True)
    return made


def _resolve(hint: Any, value: Any) -> Any:
    """Turn calls into plugins where the field wants one, and into words elsewhere."""
    if isinstance(value, list):
        return [_resolve(hint, item) for item in value]
    if not isinstance(value, _Call):
        return value
    base = _plugin_base(hint)
    if base is not None:
        return _make(base, value)
    if value.bare:
        return value.name
    raise BadSettings(f"'{value.name}(...)' is given where a plain value belongs", fix="drop ( )")


def _plugin_base(hint: Any) -> type[Plugin] | None:
    if isinstance(hint, type) and issubclass(hint, Plugin):
        return catalog.base_of(hint.folder)
    found = (_plugin_base(arg) for arg in typing.get_args(hint))
    return next((base for base in found if base is not None), None)


class _Reader:
    """A recursive-descent reader over one line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def call(self) -> _Call:
        name = self._match(WORD) or self._fail("a name")
        if not self.take("("):
            return _Call(name, {}, bare=True)
        fields: dict[str, Any] = {}
        while not self.take(")"):
            key = (self._match(WORD) or self._fail("a field name")).replace("-", "_")
            if not self.take("="):
                self._fail("'='")
            if key in fields:
                raise BadSettings(
                    f"field '{key}' is given twice in '{self._text}'", fix="keep one"
                )
            fields[key] = self._value()
            if not self.take(",") and not self._peek(")"):
                self._fail("',' or ')'")
        return _Call(name, fields)

    def place(self) -> str:
        """Read ``in ENVIRONMENT`` where it stands."""
        found = self._match(_PLACE)
        return found.split()[1] if found else HERE

    def take(self, token: str) -> bool:
        self._skip()
        if self._text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def end(self) -> None:
        self._skip()
        if self.at < len(self._text):
            self._fail("the end")

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("less nesting")
        found = self._one_value()
        self._depth -= 1
        return found

    def _one_value(self) -> Any:
        if self.take("["):
            items: list[Any] = []
            while not self.take("]"):
                items.append(self._value())
                if not self.take(",") and not self._peek("]"):
                    self._fail("',' or ']'")
            return items
        if quoted := self._match(_STRING):
            try:
                return json.loads(quoted)
            except json.JSONDecodeError:
                self._fail("a JSON string")
        if number := self._match(_NUMBER):
            try:
                return json.loads(number)
            except ValueError:  # Python reads no integer of thousands of digits
                self._fail("a shorter number")
        call = self.call()
        return CONSTANTS[call.name] if call.bare and call.name in CONSTANTS else call

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip()
        found = pattern.match(self._text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def _peek(self, token: str) -> bool:
        self._skip()
        return self._text.startswith(token, self.at)

    def _skip(self) -> None:
        while self.at < len(self._text) and self._text[self.at].isspace():
            self.at += 1

    def _fail(self, wanted: str) -> typing.NoReturn:
        raise BadSettings(
            f"cannot read '{shortened(self._text, _SHOWN)}': {wanted} expected at column "
            f"{self.at + 1}",
            fix='write name or name(field=value, ...); other text in quotes, as in ["conv_*"]',
        )
