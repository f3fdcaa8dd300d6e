"""Where the package says `fix:` and names an option, a verb or a command, found in its source."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.unit.test_fixes import NOT_VERBS, OPTION, PACKAGE, VERB, list_texts

COMMAND = re.compile(r"`[a-z][\w-]+ [^`]+`|`(?:nvidia-smi)`")
_FILLED = re.compile(r"\\\{[^{}]*\\\}")


class Site(NamedTuple):
    """A call that says what to do."""

    name: str
    """``module:function``, and ``#2`` behind the second one of a function."""
    path: str
    lines: range
    texts: tuple[str, ...]

    def matches(self, fix: str) -> bool:
        """Say whether a fix may have been written here."""
        patterns = [_FILLED.sub(".*", re.escape(text)) for text in self.texts]
        return any(re.fullmatch(pattern, fix, re.DOTALL) for pattern in patterns)


def names_command(text: str) -> bool:
    """Say whether a fix names an option, a verb or a command."""
    verbs = [verb for verb, _ in VERB.findall(text) if verb not in NOT_VERBS]
    return bool(verbs or OPTION.search(text) or COMMAND.search(text))


def walk_calls(
    tree: ast.AST, within: str = "", scope: ast.AST | None = None
) -> Iterator[tuple[str, ast.AST | None, ast.Call]]:
    """Yield every call in a tree behind the function that it stands in, and that one's name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield within, scope, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from walk_calls(node, f"{within}.{node.name}".strip("."), node)
        else:
            yield from walk_calls(node, within, scope)


def list_bindings(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """Return name -> what is assigned to it, or returned by the function of that name."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
            case ast.FunctionDef(name=name):
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
                found.setdefault(name, []).extend(filter(None, returned))
    return found


def list_all_texts(
    node: ast.expr, bindings: dict[str, list[ast.expr]], depth: int = 3
) -> Iterator[str]:
    """Yield what an expression may be, also through tables and functions of its file."""
    texts = [text for text, _ in list_texts(node, bindings)]
    yield from texts
    for part in () if texts or not depth else ast.walk(node):
        match part:
            case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                for value in values:
                    yield from list_all_texts(value, bindings, depth - 1)
            case ast.Name(id=name):
                for value in bindings.get(name, []):
                    yield from list_all_texts(value, bindings, depth - 1)


@cache
def list_sites() -> dict[str, Site]:
    """Return name -> site, of the fixes that name an option, a verb or a command."""
    sites: dict[str, Site] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bindings, short = list_bindings(tree), path.relative_to(PACKAGE).as_posix()
        for function, scope, call in sorted(walk_calls(tree), key=lambda found: found[2].lineno):
            fixes = [keyword.value for keyword in call.keywords if keyword.arg == "fix"]
            if not fixes:
                continue
            known = bindings | (list_bindings(scope) if scope else {})
            texts = tuple(dict.fromkeys(filter(None, list_all_texts(fixes[0], known))))
            if any(map(names_command, texts)):
                plain = name = f"{short.removesuffix('.py')}:{function}"
                count = 1
                while name in sites:
                    count += 1
                    name = f"{plain}#{count}"
                lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                sites[name] = Site(name, short, lines, texts)
    return sites


def find_raised(frame: FrameType | None, fix: str) -> list[str]:
    """Return the sites that calls in progress stand at and that may have said this."""
    stack = traceback.walk_stack(frame)
    places = [(Path(one.f_code.co_filename).as_posix(), line) for one, line in stack]
    return [
        site.name
        for site in list_sites().values()
        if any(name.endswith(f"/ortune/{site.path}") and at in site.lines for name, at in places)
        and site.matches(fix)
    ]
