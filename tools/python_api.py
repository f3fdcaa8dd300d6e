"""The reference of the Python API, made of docstrings: ``docs/conf.py`` puts it on its page."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator

import ortune
from ortune.cli.main import list_verb_modules

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+): ", re.MULTILINE)


def verbs() -> list[str]:
    """Return the public functions that are commands too, and `load`, which is `run`."""
    return sorted({*list_verb_modules()} & {*dir(ortune)} | {"load"})


def first_lines() -> str:
    """Return the verbs with a line each, as the package's docstring has them."""
    lines = {name: _summary(getattr(ortune, name)) for name in verbs()}
    width = max(map(len, lines))
    return "\n".join(f"    {name:<{width}}  {line}" for name, line in lines.items())


def write_reference() -> str:
    """Return every public name with its signature and docstring, as Markdown."""
    public = [name for name in dir(ortune) if not name.startswith("_")]
    others = [name for name in public if name not in verbs()]
    functions = [name for name in others if not inspect.isclass(getattr(ortune, name))]
    classes = [name for name in others if name not in functions]
    parts: list[str] = []
    for title, names in (("Verbs", verbs()), ("Functions", functions), ("Classes", classes)):
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _summary(of: object) -> str:
    return " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())


def _entry(name: str) -> str:
    of = getattr(ortune, name)
    lines = [f"### {name}\n", "```text", _signature(name, of), "```\n"]
    lines += _text(inspect.getdoc(of) or "")
    if inspect.isclass(of):
        members = [(n, m) for n, m in vars(of).items() if not n.startswith("_") and _documented(m)]
        lines += [f"- `{n}`: {_summary(m)}" for n, m in sorted(members)]
        lines += [""] if members else []
    return "\n".join(lines)


def _documented(member: object) -> bool:
    plain = isinstance(member, (property, classmethod, staticmethod))
    return (plain or inspect.isfunction(member)) and bool(inspect.getdoc(member))


def _signature(name: str, of: object) -> str:
    assert callable(of)
    found = inspect.Signature() if _is_enum(of) else inspect.signature(of)
    args = []
    starred = False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            args.append("*")
            starred = True
        starred |= one.kind is one.VAR_POSITIONAL
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        shown = "" if one.default is one.empty else f"={_default(one.default)}"
        args.append(f"{mark}{one.name}{shown}")
    flat = name if _is_enum(of) else f"{name}({', '.join(args)})"
    lines = "".join(f"    {arg},\n" for arg in args)
    return flat if len(flat) < 100 else f"{name}(\n{lines})"


def _is_enum(of: object) -> bool:
    """Say whether a class has members in the place of arguments: its signature is Python's own."""
    return isinstance(of, enum.EnumMeta)


def _default(value: object) -> str:
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    text = repr(value)
    return text if "<" not in text and " at 0x" not in text else "..."


def _text(doc: str) -> Iterator[str]:
    """Yield a docstring as Markdown: text, then a list a section."""
    parts = _SECTION.split(doc.replace("``", "`") + "\n")
    yield parts[0].strip() + "\n"
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        entries = _ENTRY.split(body)
        if len(entries) > 1:
            yield f"{title}:\n"
            for name, text in zip(entries[1::2], entries[2::2], strict=True):
                yield f"- `{name}`: {' '.join(text.split())}"
            yield ""
        else:
            yield f"{title}: {' '.join(body.split())}\n"
