"""Check what files from elsewhere hold: bounded JSON whose backends keep to one table.

Every reader of bundles, runs and settings files passes through here before a value is built; the
table itself is `ortune.core.plugins.allowed`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ortune.core.errors import BadSettings, shortened
from ortune.core.plugins import allowed
from ortune.core.plugins.allowed import Rule
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


def loads(content: bytes | str) -> Any:
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


def demand(data: object, where: str, *, fix: str = DISTRUST, signed: bool = False) -> None:
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
    for held in _mappings(data):
        if held.keys() == _INTERVAL and not _ordered(least, *(held[name] for name in _INTERVAL)):
            raise BadSettings(f"{where}: {_cut(str(held))} is not an interval", fix=fix)
        if "is" in held and (why := next(_refused(held), "")):
            raise BadSettings(f"{where}: {why}", fix=fix)


def demand_fields(
    data: Mapping[str, Any], rules: Mapping[str, Rule], where: str, *, fix: str = DISTRUST
) -> None:
    """Refuse plain data whose keys or values are not by these rules.

    Raises:
        BadSettings: A key has no rule, or its value breaks it.
    """
    for name, value in data.items():
        rule = rules.get(name)
        if rule is None:
            known = ", ".join(rules)
            raise BadSettings(f"{where}: '{_cut(name)}' is none of {known}", fix=fix)
        if why := next(_broken(rule, value), ""):
            raise BadSettings(f"{where}: {name}: {why}", fix=fix)


def code(data: object) -> tuple[str, ...]:
    """Return the names of libraries and functions in plain JSON data, in order, each once."""
    found: dict[str, None] = {}
    for held in _mappings(data):
        rules, _ = _rules(held)
        for name, rule in rules.items():
            if rule["rule"] == "code" and (value := held.get(name)):
                found |= dict.fromkeys([value] if isinstance(value, str) else map(str, value))
    return tuple(found)


def lowered(plugin: P, cpus: int) -> tuple[P, int]:
    """Return a backend with no count of threads above the CPUs, and the largest that was.

    The count is 0 where none was lowered. CPUs that threads were bound to are dropped with it.
    """
    rules, most = allowed.BACKENDS.get(plugin.name(), {}), 0
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        counts = field.name == "threads" or rules.get(field.name, {}).get("cpus", False)
        if isinstance(value, Plugin):
            inner, above = lowered(value, cpus)
            if above:
                most, changed[field.name] = max(most, above), inner
        elif counts and isinstance(value, int) and value > cpus:
            most, changed[field.name] = max(most, value), cpus
    if "threads" in changed and hasattr(plugin, "affinity"):
        changed["affinity"] = ""
    return (dataclasses.replace(plugin, **changed) if changed else plugin), most


def threads(plugin: Plugin) -> int:
    """Return the largest count of threads that a backend asks for; 0 asks for the CPUs."""
    return lowered(plugin, 0)[1]


def table() -> dict[str, Any]:
    """Return the whole table as plain data, for a reader that cannot import this package."""
    return {
        "backends": allowed.BACKENDS,
        "metrics": allowed.METRICS,
        "other": allowed.OTHER,
        "environment": allowed.ENVIRONMENT,
        "interpreters": list(allowed.INTERPRETERS),
    }


def _ordered(least: float, low: Any, value: Any, high: Any) -> bool:
    """Whether these may be an estimate and its ends; what was not measured has none."""
    if not all(isinstance(one, (int, float)) for one in (low, value, high)):
        return True  # the codec says what is wrong
    return bool(math.isnan(value) or least <= low <= value <= high)


def _mappings(data: object) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping in the data, in order."""
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                yield one
                inner += (v for v in one.values() if isinstance(v, (dict, list)))
            elif isinstance(one, list):
                inner += (v for v in one if isinstance(v, (dict, list)))
        if not inner:
            return
        level = inner
    raise BadSettings(_DEEP, fix=DISTRUST)


def _rules(held: Mapping[str, Any]) -> tuple[Mapping[str, Rule], bool]:
    """Return the rules of a stored plugin's fields, and whether others follow `OTHER`."""
    folder, _, name = str(held.get("is", "")).partition("/")
    if folder == "backends":
        return allowed.BACKENDS.get(name, {}), name not in allowed.BACKENDS
    return (allowed.METRICS.get(name, {}) if folder == "metrics" else {}), False


def _refused(held: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one stored plugin. Fields that it lacks are the codec's matter."""
    rules, foreign = _rules(held)
    name = str(held["is"]).partition("/")[2]
    if foreign and not re.fullmatch(r"[\w-]+", name):
        yield f"'{_cut(name)}' is no backend that is installed"
    for field, value in held.items():
        rule = rules.get(field) or (_other(value) if foreign and field != "is" else None)
        if rule is not None:
            yield from (f"{name}({field}=...): {why}" for why in _broken(rule, value))


def _other(value: object) -> Rule | None:
    """Return the rule for a value of a backend that is not ortune's own."""
    kinds = ((bool, "flag"), (int, "integer"), (float, "number"), (str, "text"), (list, "list"))
    kind = next((name for one, name in kinds if isinstance(value, one)), "")
    return allowed.OTHER.get(kind)


def _broken(rule: Rule, value: Any) -> Iterator[str]:
    """Yield how a value breaks its rule; of another type than the rule's it is refused too."""
    match rule["rule"]:
        case "flag":
            if not isinstance(value, bool):
                yield f"{_shown(value)} is neither true nor false"
        case "integer" | "number":
            yield from _bounded(rule, value)
        case "word":
            if value not in rule["of"]:
                yield f"{_shown(value)} is not allowed; {', '.join(rule['of'])} are"
        case "text":
            if not isinstance(value, str) or len(value) > rule["most"]:
                yield f"{_shown(value)} is no text of at most {rule['most']} characters"
            elif not re.fullmatch(rule["pattern"], value):
                yield f"{_shown(value)} is not of the form that it may have"
        case "list":
            yield from _listed(rule, value)
        case "either":
            if all(next(_broken(one, value), "") for one in rule["of"]):
                yield f"{_shown(value)} is not what it may be"
        case "pairs":
            yield from _paired(rule["keys"], value)
        case "nothing":
            if value:
                yield f"{_shown(value)} names a file"
        case "code":
            names = value if isinstance(value, list) else [value]
            if not all(isinstance(one, str) for one in names):
                yield f"{_shown(value)} is no list of names"


def _bounded(rule: Rule, value: Any) -> Iterator[str]:
    kinds = (int,) if rule["rule"] == "integer" else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        yield f"{_shown(value)} is no {rule['rule']}"
    elif not rule["least"] <= value <= rule["most"]:
        yield f"{_shown(value)} is not between {rule['least']} and {rule['most']}"


def _listed(rule: Rule, value: Any) -> Iterator[str]:
    if not isinstance(value, list) or len(value) > rule["most"]:
        yield f"{_shown(value)} is no list of at most {rule['most']}"
        return
    for item in value:
        one = rule.get("of") or _other(item)
        if one is not None:
            yield from _broken(one, item)


def _paired(keys: Mapping[str, Rule], value: Any) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        yield f"{_shown(value)} is no list of key=value"
        return
    for text in value:
        key, _, given = (part.strip() for part in text.partition("="))
        rule = keys.get(key)
        if rule is None:
            yield f"'{_cut(key)}' is no setting that a file from elsewhere may make"
        elif why := next(_broken(rule, _number(given) if "least" in rule else given), ""):
            yield f"{key}: {why}"


def _number(text: str) -> float | str:
    """Return the number that a text spells in plain digits, or the text."""
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text) else text


def _shown(value: object) -> str:
    return (
        _cut(repr(value)) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
    )


def _cut(text: str) -> str:
    return shortened(text.encode("unicode_escape").decode(), _LONGEST)
