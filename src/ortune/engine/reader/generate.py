"""Make the reader in one file: ortune's own definitions, as many as opening a bundle needs."""

from __future__ import annotations

import builtins
import importlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ortune.core.atomic_write import write_text
from ortune.core.errors import Unexpected
from ortune.core.outputs import free
from ortune.core.version import __version__
from ortune.engine.reader.definitions import PACKAGE, ROOT, Definition, Name, definitions

ENTRY = "ortune.engine.reader.opening"
DATA = ("ortune.engine.reader.tables",)
"""Modules whose values are written as JSON, in the place of their code."""
INSTEAD: Mapping[Name, Name] = {
    ("ortune.engine.manifest", "decoded"): ("ortune.engine.reader.forms", "decoded"),
    ("ortune.core.plugins.stored", "_rules"): ("ortune.engine.reader.sessions", "rules"),
    ("ortune.runtimes.onnxruntime.custom_ops", "register"): (
        "ortune.engine.reader.sessions",
        "register",
    ),
}
"""Functions that need classes of plugins, or run code -> what stands in their place."""
_WIDTH = 90
KEPT_OUT = ("onnx", "onnx_ir", "onnxscript", "psutil", "click", "rich", "ml_dtypes")
"""Packages that ortune has and the reader must do without."""


def reader(out: str | Path, *, force: bool = False) -> Path:
    """Write the reader: a Python file that opens bundles where ortune is not installed.

    Args:
        out: Where it goes, by custom ``reader.py``.
        force: Overwrite an existing file.

    Raises:
        OrtuneError: The file is there already or cannot be written.
    """
    path = Path(out)
    free(path, force)
    return write_text(path, source())


@cache
def source() -> str:
    """Return the text of the reader; the same ortune gives the same text.

    Raises:
        Unexpected: A definition that opening a bundle needs cannot stand in one file.
    """
    needed = _needed()
    names = _renamed(needed)
    values: dict[str, object] = {}
    lines = {"import json", "from typing import Any"}
    parts, imports = list[str](), dict[str, str]()
    for one in needed:
        if one.module in DATA:
            held = vars(importlib.import_module(one.module))
            values |= {names[one.module, name]: held[name] for name in one.names}
            continue
        parts.append(_text(one, names))
        for name, statement in one.imports.items():
            if not _same(name, imports.setdefault(name, statement), statement):
                raise Unexpected(
                    f"two imports are called '{name}'", fix="rename one where it is used"
                )
            lines.add(statement)
    return "\n\n\n".join([_head(), "\n".join(sorted(lines)), _tables(values), *parts, _END])


_END = 'if __name__ == "__main__":\n    sys.exit(main())\n'


def _same(name: str, *statements: str) -> bool:
    """Whether imports bind one name alike: a package and a module in it do."""
    top = (f"import {name}", f"import {name}.")
    return len({*statements}) == 1 or all(
        one == top[0] or one.startswith(top[1]) for one in statements
    )


def _head() -> str:
    entry = (ROOT / f"{ENTRY.replace('.', '/')}.py").read_text(encoding="utf-8")
    doc = entry.split('"""')[1].rstrip("\n")
    return (
        f'"""{doc}\n\nWritten by ortune {__version__}: its definitions as they are, with its '
        'tables of what a bundle may\nset. `ortune reader -o FILE` writes it anew.\n"""\n\n'
        "# ruff: noqa\n\nfrom __future__ import annotations"
    )


def _tables(values: Mapping[str, object]) -> str:
    text = _json(values)
    if "'''" in text:
        raise Unexpected("a table holds three quotes", fix="spell it otherwise")
    lines = [f"_TABLES: Any = json.loads(r'''\n{text}\n''')"]
    return "\n".join([*lines, *(f'{name}: Any = _TABLES["{name}"]' for name in values)])


def _json(value: object, depth: int = 0) -> str:
    """Write JSON in lines, where it does not fit into one."""
    text = json.dumps(value)
    if len(text) + depth < _WIDTH or not isinstance(value, (dict, list)):
        return text
    ends = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {_json(one, depth + 1)}" for key, one in value.items()]
    else:
        rows = [_json(one, depth + 1) for one in value]
    inner = ",\n".join(f"{' ' * (depth + 1)}{row}" for row in rows)
    return f"{ends[0]}\n{inner}\n{' ' * depth}{ends[1]}"


def _needed() -> list[Definition]:
    """Return all definitions, each behind those that it needs."""
    seen: set[tuple[str, int]] = set()
    order: list[Definition] = []

    def add(one: Definition) -> None:
        if (one.module, one.line) in seen:
            return
        seen.add((one.module, one.line))
        if one.module not in DATA:
            for name in one.uses.values():
                add(_definition(INSTEAD.get(name, name)))
        for statement in one.imports.values():
            if statement.split()[1].partition(".")[0] in KEPT_OUT:
                raise Unexpected(
                    f"{one.module} needs '{statement}'", fix="leave it out of the reader"
                )
        if f"from {PACKAGE}" in one.text or "plugins.plugin" in one.module:
            raise Unexpected(
                f"{one.module}, line {one.line}: {one.names[0]} cannot stand in one file",
                fix="let the reader do without it, or put another in its place",
            )
        order.append(one)

    for one in definitions(ENTRY):
        add(one)
    return order


def _definition(name: Name) -> Definition:
    module, wanted = name
    for one in definitions(module):
        if wanted in one.names:
            return one
    raise Unexpected(f"{module} defines no '{wanted}'", fix="import it from where it is defined")


def _renamed(needed: list[Definition]) -> dict[Name, str]:
    """Return how each name is spelled in the file: its own, or with its module's behind it.

    Two definitions have two names, and none is hidden by a variable where it is used.
    """
    taken = {name for one in needed for name in one.imports} | set(dir(builtins))
    hides = defaultdict[Name, set[str]](set)
    for one in needed:
        for used in one.uses.values():
            hides[INSTEAD.get(used, used)] |= one.local
    names: dict[Name, str] = {}
    entry = [one for one in needed if one.module == ENTRY]
    for one in (*entry, *(other for other in needed if other.module != ENTRY)):
        for name in one.names:
            hidden = hides[one.module, name]
            spelled, home = name, one.module.split(".")
            while spelled in taken or spelled in hidden:
                spelled = f"{spelled}_{home.pop()}"
            taken.add(spelled)
            names[one.module, name] = spelled
    return names


def _text(one: Definition, names: Mapping[Name, str]) -> str:
    """Return a definition with the names of the file in it."""
    text = one.text
    changed = {old: names[INSTEAD.get(name, name)] for old, name in one.uses.items()}
    changed |= {name: names[one.module, name] for name in one.names}
    spelled = {old: new for old, new in changed.items() if old != new}
    if not spelled:
        return text
    either = "|".join(re.escape(old) for old in sorted(spelled, key=len, reverse=True))
    # Not an attribute of something else, nor the name of an argument in a call.
    pattern = re.compile(rf"(?<![\w.])(?:{either})\b(?!=[^=])")
    return pattern.sub(lambda found: spelled[found[0]], text)
