"""What a file from elsewhere may set, and the check of what it holds.

A bundle, a run's folder and a settings file carry data, not power: nothing that they set writes a
file, loads code, names a path or an interpreter, or asks for more than this machine has. Nothing
that is stored sets an environment variable. Every reader of them passes through here before a
value is built: JSON is bounded, and every setting of a backend keeps to the rule of its field.

The rule of a field stands in its annotation, ``Annotated[tuple[str, ...], stored.CODE]``, or
follows from it: a truth, a choice of words (``Literal``), a number with ``Bounds``. A field of
ours without one takes nothing from a file; one of another package's backend takes numbers, truths
and plain words.

What a person types on a command line, or writes in Python, is not held to it: it is that person's
machine. A search is the exception: its results are written to be read again, so that what
`optimize` is given must keep to the rules too.
"""

import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from ortune.core.errors import BadSettings, shorten_text, with_article
from ortune.core.plugins import bounds, catalog
from ortune.core.plugins.plugin import Plugin

P = TypeVar("P", bound=Plugin)

DISTRUST = "do not trust this file"
_DEEPEST = 64
"""Levels of lists and mappings; what is written here has a dozen."""
_DEEP = "it is nested too deeply"
_MOST = 500_000
"""Lists and mappings in one text; a run of thousands of samples has a hundredth."""
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How a half of a character beyond the first 65,536 is spelled."""
_LONGEST = 80
_INTERVAL = dict.fromkeys(("low", "value", "high")).keys()


class FieldRule(dict[str, Any]):
    """What a stored value may be, as plain data; it stands in the annotation of a field."""


def integer(least: int, most: int) -> FieldRule:
    """Whole numbers."""
    return FieldRule(rule="integer", least=least, most=most)


def number(least: float, most: float) -> FieldRule:
    """Finite numbers."""
    return FieldRule(rule="number", least=least, most=most)


def word(*words: str) -> FieldRule:
    """One of these words."""
    return FieldRule(rule="word", of=list(words))


def text(pattern: str, most: int) -> FieldRule:
    """Texts of at most so many characters that match a pattern as a whole."""
    return FieldRule(rule="text", pattern=pattern, most=most)


def items(of: FieldRule, most: int) -> FieldRule:
    """Lists of at most so many items, each by a rule."""
    return FieldRule(rule="list", of=of, most=most)


def either(*rules: FieldRule) -> FieldRule:
    """What keeps to one of these rules."""
    return FieldRule(rule="either", of=list(rules))


def pairs(keys: Mapping[str, FieldRule]) -> FieldRule:
    """Lists of ``key=value`` texts, each key by its rule; other keys are refused."""
    return FieldRule(rule="pairs", keys=keys)


FLAG = FieldRule(rule="flag")
SWITCH = word("0", "1")
CODE = FieldRule(rule="code")
"""Names of libraries or functions. They are kept and shown, and run only where a person says so by
name (`ortune.bundle.engine.consent`)."""
NOTHING = FieldRule(rule="nothing")
"""No value but an empty one: of a field that names a file, or says nothing of files."""
NAME = text(r"(?s).*", 4096)
"""A tensor's name: a key in a mapping and nothing else, whatever is in it."""
_PLUGIN = FieldRule(rule="plugin")
"""A plugin, whose fields keep to their own rules."""
_OTHER: Mapping[type, FieldRule] = {
    bool: FLAG,
    int: integer(-(1 << 31), 1 << 31),
    float: number(-1e300, 1e300),
    str: text(r"[\w-]*", 64),
    list: FieldRule(rule="list", most=4096),
}
"""By what its value is: a field of a backend from another package that has no rule."""


@cache
def find_declared_rules(kind: type[Any]) -> Mapping[str, FieldRule]:
    """Return field -> the rule in its annotation, of a dataclass's fields that have one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: rule
        for field in dataclasses.fields(kind)
        for rule in getattr(hints[field.name], "__metadata__", ())
        if isinstance(rule, FieldRule)
    }


@cache
def list_field_rules(kind: type[Any]) -> Mapping[str, FieldRule]:
    """Return field -> rule of a dataclass, for every field: `NOTHING` where none is to be read."""
    hints = typing.get_type_hints(kind, include_extras=True)
    derived = {field.name: _derive_rule(hints[field.name]) for field in dataclasses.fields(kind)}
    return derived | dict(find_declared_rules(cast(Any, kind)))


def list_settable_rules(kind: type[Any]) -> Mapping[str, FieldRule]:
    """Return field -> rule of a dataclass, of the fields that a file may set."""
    rules = list_field_rules(cast(Any, kind))
    return {name: rule for name, rule in rules.items() if rule is not NOTHING}


def _derive_rule(hint: Any) -> FieldRule:
    """Return the rule that an annotation without one amounts to."""
    limits = bounds.find_declared_bounds(hint)
    kind = hint.__origin__ if typing.get_origin(hint) is Annotated else hint
    if kind is bool:
        return FLAG
    if typing.get_origin(kind) is Literal:
        return word(*typing.get_args(kind))
    if kind is float and limits:
        return number(limits.low, limits.high)
    if kind is int and limits:
        whole = integer(int(limits.low), int(limits.high))
        return whole if limits.per_cpu is None else FieldRule(whole, cpus=True)
    return _PLUGIN if isinstance(kind, type) and issubclass(kind, Plugin) else NOTHING


def parse_json(content: bytes | str) -> Any:
    """Read JSON in UTF-8.

    Raises:
        ValueError: It is none, has far more parts than anything that ortune writes, or text that
            cannot be written again: halves of characters.
    """
    text = content.decode() if isinstance(content, bytes) else content
    if text.count("[") + text.count("{") > _MOST:
        raise ValueError(f"it has more than {_MOST} lists and mappings")
    try:
        data = json.loads(text)
        if _HALF.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(_DEEP) from None
    return data


def demand_safe_data(
    data: object, where: str, *, fix: str = DISTRUST, signed: bool = False
) -> None:
    """Refuse plain JSON data in which a backend, at any depth, is set as a file may not.

    Args:
        data: What `codec.encode` gives or `codec.decode` takes.
        where: What holds it, for the message.
        fix: What to do about it.
        signed: Intervals may be of differences, which lie below 0 too, instead of ratios.

    Raises:
        BadSettings: A setting is not in the table or out of its bounds, an interval's ends lie on
            the wrong sides, or the data are nested deeper than anything that ortune writes.
    """
    least = -math.inf if signed else 0.0
    for mapping in list(_find_mappings(data)):  # all levels are counted before one is looked into
        if mapping.keys() == _INTERVAL and not _is_interval(
            least, *(mapping[name] for name in _INTERVAL)
        ):
            raise BadSettings(
                f"{where}: {_shorten_value(str(mapping))} is not an interval", fix=fix
            )
        if "is" in mapping and (why := _find_violation(mapping)):
            raise BadSettings(f"{where}: {why}", fix=fix)


def demand_fields(data: Mapping[str, Any], kind: type[Any], where: str) -> None:
    """Refuse plain data that set a dataclass's fields as a file may not.

    Raises:
        BadSettings: A key is no field that a file may set, or its value breaks the rule.
    """
    allowed = list_settable_rules(kind)
    for name, value in data.items():
        rule = allowed.get(name)
        if rule is None:
            field_names = ", ".join(allowed)
            raise BadSettings(
                f"{where}: '{_shorten_value(name)}' is not one of {field_names}", fix=DISTRUST
            )
        if why := _find_fault(rule, value):
            raise BadSettings(f"{where}: {name}: {why}", fix=DISTRUST)


def list_code_names(data: object) -> tuple[str, ...]:
    """Return the names of libraries and functions in plain JSON data, in order, each once."""
    names: dict[str, None] = {}
    for mapping in _find_mappings(data):
        for name, rule in _find_rules(str(mapping.get("is", "")))[0].items():
            if rule["rule"] == "code" and (value := mapping.get(name)):
                names |= dict.fromkeys([value] if isinstance(value, str) else map(str, value))
    return tuple(names)


def limit_threads(plugin: P, cpus: int) -> tuple[P, int]:
    """Return a backend with no count of threads above the CPUs, and the largest that was.

    The count is 0 where none was lowered. CPUs that threads were bound to are dropped with it.
    """
    most, limits = 0, list_field_rules(type(plugin)) if _is_ours(type(plugin).__module__) else {}
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        counts = field.name == "threads" or "cpus" in limits.get(field.name, ())
        if isinstance(value, Plugin):
            inner, above = limit_threads(value, cpus)
            if above:
                most, changed[field.name] = max(most, above), inner
        elif counts and isinstance(value, int) and value > cpus:
            most, changed[field.name] = max(most, value), cpus
    if "threads" in changed and hasattr(plugin, "affinity"):
        changed["affinity"] = ""
    return (dataclasses.replace(plugin, **changed) if changed else plugin), most


def count_requested_threads(plugin: Plugin) -> int:
    """Return the largest count of threads that a backend asks for; 0 asks for the CPUs."""
    return limit_threads(plugin, 0)[1]


def _is_interval(least: float, low: Any, value: Any, high: Any) -> bool:
    """Whether these may be an estimate and its ends; what was not measured has none."""
    if not all(isinstance(end, (int, float)) for end in (low, value, high)):
        return True  # the codec says what is wrong
    return bool(math.isnan(value) or least <= low <= value <= high)


def _find_mappings(data: object) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping in the data, in order."""
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                yield item
                inner += (v for v in item.values() if isinstance(v, (dict, list)))
            elif isinstance(item, list):
                inner += (v for v in item if isinstance(v, (dict, list)))
        if not inner:
            return
        level = inner
    raise BadSettings(_DEEP, fix=DISTRUST)


def _find_rules(path: str) -> tuple[Mapping[str, FieldRule], bool]:
    """Return the rules of a stored plugin's fields, and whether those without one are `_OTHER`'s.

    Args:
        path: Its folder and name, such as ``backends/cpu``; no file of the user's is run.
    """
    folder, _, name = path.partition("/")
    if folder in ("backends", "metrics") and name in catalog.map_modules(folder):
        return _rules_of_installed(folder, name)
    return {}, folder == "backends"


@cache  # of what is installed alone: a file may hold any number of other names
def _rules_of_installed(folder: str, name: str) -> tuple[Mapping[str, FieldRule], bool]:
    kind = catalog.load_plugin(catalog.base_of(folder), name)
    if folder == "backends" and _is_ours(catalog.map_modules(folder)[name]):
        return list_field_rules(kind), False
    return find_declared_rules(kind), folder == "backends"


def _is_ours(module: str) -> bool:
    return module.startswith("ortune.")


def _find_violation(setting: Mapping[str, Any]) -> str:
    """Return what is wrong with one stored plugin. Fields that it lacks are the codec's matter."""
    path = str(setting["is"])
    limits, foreign = _find_rules(path)
    name = path.partition("/")[2]
    if foreign and not re.fullmatch(r"[\w-]+", name):
        return f"'{_shorten_value(name)}' is not an installed backend"
    for field, value in setting.items():
        rule = limits.get(field) or (
            _find_foreign_rule(value) if foreign and field != "is" else None
        )
        if rule is not None and (why := _find_fault(rule, value)):
            return f"{name}({field}=...): {why}"
    return ""


def _find_foreign_rule(value: object) -> FieldRule | None:
    return next((rule for kind, rule in _OTHER.items() if isinstance(value, kind)), None)


def _find_fault(rule: FieldRule, value: Any) -> str:
    """Return how a value breaks its rule, by its type too; empty where it keeps it."""
    match rule["rule"]:
        case "flag":
            wrong, why = not isinstance(value, bool), "is neither true nor false"
        case "integer" | "number":
            return _find_number_fault(rule, value)
        case "word":
            wrong, why = value not in rule["of"], f"is not allowed; {', '.join(rule['of'])} are"
        case "text":
            if not isinstance(value, str) or len(value) > rule["most"]:
                return f"{_show_value(value)} is not a text of at most {rule['most']} characters"
            wrong = not re.fullmatch(rule["pattern"], value)
            why = "has a form that is not allowed"
        case "list":
            return _find_list_fault(rule, value)
        case "either":
            wrong = all(_find_fault(part, value) for part in rule["of"])
            why = "is not an allowed value"
        case "pairs":
            wrong = not isinstance(value, list) or not all(isinstance(part, str) for part in value)
            why = "is not a list of key=value"
            if not wrong:
                return next((bad for text in value if (bad := _fault_of_pair(rule, text))), "")
        case "nothing":
            wrong, why = bool(value), "must not be set by a file"
        case "code":
            names = value if isinstance(value, list) else [value]
            wrong = not all(isinstance(part, str) for part in names)
            why = "is not a list of names"
        case _:
            return ""
    return f"{_show_value(value)} {why}" if wrong else ""


def _find_number_fault(rule: FieldRule, value: Any) -> str:
    kinds = (int,) if rule["rule"] == "integer" else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return f"{_show_value(value)} is not {with_article(rule['rule'])}"
    if rule["least"] <= value <= rule["most"]:
        return ""
    return f"{_show_value(value)} is not between {rule['least']} and {rule['most']}"


def _find_list_fault(rule: FieldRule, value: Any) -> str:
    if not isinstance(value, list) or len(value) > rule["most"]:
        return f"{_show_value(value)} is not a list of at most {rule['most']}"
    each = ((rule.get("of") or _find_foreign_rule(item), item) for item in value)
    return next((bad for part, item in each if part and (bad := _find_fault(part, item))), "")


def _fault_of_pair(rule: FieldRule, text: str) -> str:
    key, _, value_text = (part.strip() for part in text.partition("="))
    of_key = rule["keys"].get(key)
    if of_key is None:
        return f"'{_shorten_value(key)}' is a setting that a file must not change"
    value: float | str = value_text
    if "least" in of_key and re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", value_text):
        value = float(value_text) if "." in value_text else int(value_text)
    why = _find_fault(of_key, value)
    return why and f"{key}: {why}"


def _show_value(value: object) -> str:
    is_plain = isinstance(value, (str, int, float))
    return _shorten_value(repr(value)) if is_plain else f"a {type(value).__name__}"


def _shorten_value(text: str) -> str:
    return shorten_text(text.encode("unicode_escape").decode(), _LONGEST)
