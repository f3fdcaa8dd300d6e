"""The definitions at the top of ortune's modules, and what each refers to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[3]
"""The folder that holds the package."""
PACKAGE = "ortune"

Name: TypeAlias = tuple[str, str]
"""A module, and a name at its top."""


@dataclass(frozen=True)
class Definition:
    """A function, class or assignment at the top of a module.

    Attributes:
        module: Full name.
        names: What it defines.
        text: As it is in the file, decorators and the docstring of an attribute included.
        line: Where it begins.
        uses: Text in it -> the name of ortune's that it stands for; annotations do not count.
        imports: Names of other packages in it -> the statement that imports each.
        local: Names of its arguments and variables.
    """

    module: str
    names: tuple[str, ...]
    text: str
    line: int
    uses: Mapping[str, Name]
    imports: Mapping[str, str]
    local: frozenset[str]


@dataclass
class _Source:
    """A module while it is read.

    Attributes:
        bound: Name -> module and name of ortune's that an import binds; "" for a module itself.
        foreign: Name -> import statement of another package.
        own: Names that the module defines.
    """

    name: str
    lines: list[str]
    bound: dict[str, Name] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)


@cache
def definitions(module: str) -> tuple[Definition, ...]:
    """Return all definitions of a module of ortune's, in order."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    text = path.read_text(encoding="utf-8")
    source = _Source(module, text.splitlines())
    parts: list[tuple[ast.stmt, int, int]] = []
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _bind(source, node)
        elif names := _defined(node):
            source.own.update(names)
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            parts.append((node, first, node.end_lineno or first))
        elif parts and _is_text(node) and not isinstance(parts[-1][0], _BLOCKS):
            parts[-1] = (*parts[-1][:2], node.end_lineno or node.lineno)
    return tuple(_definition(source, *part) for part in parts)


_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _definition(source: _Source, node: ast.stmt, first: int, last: int) -> Definition:
    uses: dict[str, Name] = {}
    imports: dict[str, str] = {}
    local = frozenset(_local(node))
    for used in _used(node):
        head, _, rest = used.partition(".")
        if head in source.own:
            uses[head] = (source.name, head)
        elif head in source.bound:
            module, name = source.bound[head]
            if name:
                uses[head] = (module, name)
            elif rest:
                uses[used] = (module, rest)
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id in source.foreign:
            imports[one.id] = source.foreign[one.id]
    text = "\n".join(source.lines[first - 1 : last])
    return Definition(source.name, _defined(node), text, first, uses, imports, local)


def _bind(source: _Source, node: ast.Import | ast.ImportFrom) -> None:
    """Note what an import binds: parts of ortune by their home, all else by its statement."""
    for alias in node.names:
        name = alias.asname or alias.name
        if isinstance(node, ast.Import):
            source.foreign[name.partition(".")[0]] = f"import {_spelled(alias)}"
        elif node.module == "__future__":
            continue
        elif (node.module or "").partition(".")[0] != PACKAGE:
            source.foreign[name] = f"from {node.module} import {_spelled(alias)}"
        elif _is_module(f"{node.module}.{alias.name}"):
            source.bound[name] = (f"{node.module}.{alias.name}", "")
        else:
            source.bound[name] = (node.module or "", alias.name)


def _spelled(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _is_module(name: str) -> bool:
    return (ROOT / f"{name.replace('.', '/')}.py").is_file()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, _BLOCKS):
        return (node.name,)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    if isinstance(node, ast.Assign):
        found = (one for target in node.targets for one in ast.walk(target))
        return tuple(one.id for one in found if isinstance(one, ast.Name))
    return ()


def _used(node: ast.stmt) -> Iterator[str]:
    """Yield names, and names with an attribute, that a definition needs when it runs."""
    if isinstance(node, ast.ClassDef):
        own = {name for one in node.body for name in _defined(one)}
        for outer in (*node.decorator_list, *node.bases, *(key.value for key in node.keywords)):
            yield from _names(outer, set())
        for one in node.body:
            inner = isinstance(one, _BLOCKS)
            yield from (_used(one) if inner else _names(one, own))
        return
    block = isinstance(node, _BLOCKS)
    yield from _names(node, _local(node) if block else set())


def _local(node: ast.stmt) -> set[str]:
    """Return the names of arguments and variables in a definition, at any depth."""
    own = set(_defined(node))
    found = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        elif isinstance(one, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in one.names}
    return found - own


def _names(node: ast.AST, local: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id not in local:
            yield f"{node.value.id}.{node.attr}"
        return
    if isinstance(node, ast.Name):
        if node.id not in local:
            yield node.id
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _names(one, local)
