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

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, shorten_text
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.plugin import CONSTANTS, WORD, Plugin, spell_value

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


def parse_plugin(base: type[P], text: str) -> P:
    """Read one plugin, such as ``int8-static(observer=percentile(p=99.9))``.

    Raises:
        BadSettings: The text does not follow the grammar, or a field is wrong.
        UnknownPlugin: No such plugin.
    """
    return parse_given(base, text)[0]


def parse_given(base: type[P], text: str) -> tuple[P, frozenset[str]]:
    """Like `parse_plugin`, and say which fields were written out: they are pinned in a search."""
    reader = _Reader(text)
    call = reader.read_call()
    reader.expect_end()
    return _build_plugin(base, call), frozenset(call.fields)


def parse_list(base: type[P], text: str) -> list[tuple[P, frozenset[str]]]:
    """Read plugins separated by commas, such as ``cpu(threads=1),openvino``."""
    reader = _Reader(text)
    calls = [reader.read_call()]
    while reader.take_token(","):
        calls.append(reader.read_call())
    reader.expect_end()
    return [(_build_plugin(base, call), frozenset(call.fields)) for call in calls]


def parse_placed(base: type[P], text: str) -> list[tuple[P, frozenset[str], str]]:
    """Read plugins as `parse_list`, each with its environment: ``cpu,openvino in vino``."""
    return [
        (_build_plugin(base, call), frozenset(call.fields), at)
        for call, at in _read_placed_calls(text)
    ]


@cache
def read_environments(text: str) -> Mapping[str, str]:
    """Return name -> environment of those plugins of a list that are said to be in one."""
    return {call.name: at for call, at in _read_placed_calls(text) if at != HERE}


def _read_placed_calls(text: str) -> list[tuple[_Call, str]]:
    reader = _Reader(text)
    calls = [(reader.read_call(), reader.read_place())]
    while reader.take_token(","):
        calls.append((reader.read_call(), reader.read_place()))
    reader.expect_end()
    return calls


def with_field(text: str, field: str, value: object) -> str:
    """Write one more field into every plugin of a list; what is written out stays so.

    Raises:
        BadSettings: The text does not follow the grammar.
    """
    reader, parts, more = _Reader(text), [], True
    while more:
        start = reader.at
        call = reader.read_call()
        written = text[start : reader.at].strip()
        extra = f"{field}={spell_value(value)}"
        if not call.bare:
            written = written[:-1].rstrip().rstrip(",")
            extra = f"{', ' if call.fields else ''}{extra})"
        place = reader.read_place()
        where = "" if place == HERE else f" in {place}"
        parts.append((f"{written}({extra})" if call.bare else written + extra) + where)
        more = reader.take_token(",")
    reader.expect_end()
    return ",".join(parts)


def _build_plugin(base: type[P], call: _Call) -> P:
    """Build the plugin that a call names."""
    cls = catalog.load_plugin(base, call.name)
    hints = typing.get_type_hints(cls)
    fields = {key: _resolve_calls(hints.get(key), value) for key, value in call.fields.items()}
    plugin = codec.build_dataclass(cls, fields)
    codec.check_numbers(plugin, fields, here=True)
    return plugin


def _resolve_calls(hint: Any, value: Any) -> Any:
    """Turn calls into plugins where the field wants one, and into words elsewhere."""
    if isinstance(value, list):
        return [_resolve_calls(hint, item) for item in value]
    if not isinstance(value, _Call):
        return value
    base = _plugin_base(hint)
    if base is not None:
        return _build_plugin(base, value)
    if value.bare:
        return value.name
    raise BadSettings(
        f"'{value.name}(...)' is given where a plain value is expected",
        fix=f"write {value.name} without parentheses",
    )


def _plugin_base(hint: Any) -> type[Plugin] | None:
    if isinstance(hint, type) and issubclass(hint, Plugin):
        return catalog.base_of(hint.folder)
    bases = (_plugin_base(arg) for arg in typing.get_args(hint))
    return next((base for base in bases if base is not None), None)


class _Reader:
    """A recursive-descent reader over one line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def read_call(self) -> _Call:
        name = self._match_pattern(WORD) or self._raise_expected("a name")
        if not self.take_token("("):
            return _Call(name, {}, bare=True)
        fields: dict[str, Any] = {}
        while not self.take_token(")"):
            key = (self._match_pattern(WORD) or self._raise_expected("a field name")).replace(
                "-", "_"
            )
            if not self.take_token("="):
                self._raise_expected("'='")
            if key in fields:
                raise BadSettings(
                    f"field '{key}' is given twice in '{self._text}'", fix="keep one"
                )
            fields[key] = self._read_value()
            if not self.take_token(",") and not self._sees_token(")"):
                self._raise_expected("',' or ')'")
        return _Call(name, fields)

    def read_place(self) -> str:
        """Read ``in ENVIRONMENT`` where it stands."""
        phrase = self._match_pattern(_PLACE)
        return phrase.split()[1] if phrase else HERE

    def take_token(self, token: str) -> bool:
        self._skip_blanks()
        if self._text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def expect_end(self) -> None:
        self._skip_blanks()
        if self.at < len(self._text):
            self._raise_expected("the end")

    def _read_value(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._raise_expected("less nesting")
        value = self._read_inner_value()
        self._depth -= 1
        return value

    def _read_inner_value(self) -> Any:
        if self.take_token("["):
            items: list[Any] = []
            while not self.take_token("]"):
                items.append(self._read_value())
                if not self.take_token(",") and not self._sees_token("]"):
                    self._raise_expected("',' or ']'")
            return items
        if quoted := self._match_pattern(_STRING):
            try:
                return json.loads(quoted)
            except json.JSONDecodeError:
                self._raise_expected("a JSON string")
        if number := self._match_pattern(_NUMBER):
            try:
                return json.loads(number)
            except ValueError:  # Python reads no integer of thousands of digits
                self._raise_expected("a shorter number")
        call = self.read_call()
        return CONSTANTS[call.name] if call.bare and call.name in CONSTANTS else call

    def _match_pattern(self, pattern: re.Pattern[str]) -> str | None:
        self._skip_blanks()
        match = pattern.match(self._text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[0]

    def _sees_token(self, token: str) -> bool:
        self._skip_blanks()
        return self._text.startswith(token, self.at)

    def _skip_blanks(self) -> None:
        while self.at < len(self._text) and self._text[self.at].isspace():
            self.at += 1

    def _raise_expected(self, expected: str) -> typing.NoReturn:
        raise BadSettings(
            f"cannot read '{shorten_text(self._text, _SHOWN)}': {expected} expected at column "
            f"{self.at + 1}",
            fix='write name or name(field=value, ...); other text in quotes, as in ["conv_*"]',
        )
