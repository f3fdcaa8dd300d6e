"""Read the modules of a package without importing them: imports, classes, lengths."""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One file.

    Attributes:
        name: Full name, that of the package for an ``__init__``.
        path: Of the file.
        text: Of the file.
    """

    name: str
    path: Path
    text: str

    @property
    def is_package(self) -> bool:
        """Whether it is an ``__init__``."""
        return self.path.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, but for blocks that only a type checker sees."""
        found: list[ast.AST] = []
        rest: list[ast.AST] = [self.tree]
        while rest:
            node = rest.pop()
            found.append(node)
            if isinstance(node, ast.If) and _type_checking(node.test):
                rest += node.orelse
            else:
                rest += ast.iter_child_nodes(node)
        return found

    @cached_property
    def imports(self) -> set[str]:
        """Full names of what it imports: modules, and members of modules."""
        return _list_imports(self.nodes)

    @cached_property
    def all_imports(self) -> set[str]:
        """The same with what only a type checker imports."""
        return _list_imports(ast.walk(self.tree))

    @property
    def classes(self) -> list[str]:
        """Names of its classes, not of those inside others."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @property
    def functions(self) -> list[tuple[str, int]]:
        """Name and lines of every function, decorators apart."""
        return [(n.name, _end(n) - n.lineno + 1) for n in self.nodes if isinstance(n, _FUNCTION)]

    @property
    def kinds(self) -> list[str]:
        """Of every line, whether it is blank, comment, docstring, import or code."""
        kinds = ["code"] * len(self.lines)
        for number, line in enumerate(self.lines):
            if not line.strip() or line.strip().startswith("#"):
                kinds[number] = "comment" if line.strip() else "blank"
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                kind = "import"
            elif isinstance(node, ast.Expr) and _text(node.value) is not None:
                kind = "docstring"
            else:
                continue
            kinds[node.lineno - 1 : _end(node)] = [kind] * (_end(node) - node.lineno + 1)
        return kinds


def read_modules(root: Path) -> dict[str, Module]:
    """Return full name -> module of a package."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, path.read_text(encoding="utf-8"))
    parse(found.values())
    return found


def parse(modules: Iterable[Module]) -> None:
    """Parse modules without the garbage collector, which looks in vain for most of the time."""
    gc.disable()
    try:
        for module in modules:
            module.tree  # noqa: B018
    finally:
        gc.enable()


def private_uses(file: Module, modules: Collection[str]) -> Iterator[str]:
    """Yield where a file uses private names of the modules.

    That is an import of one, an attribute of an imported module, also by getattr, setattr and
    the like, and a text that spells one out in full.
    """
    bound = dict(_bindings(file, modules))
    for node in file.nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [_dotted(node, bound)]
        elif isinstance(node, ast.Call) and len(node.args) > 1 and _text(node.args[1]):
            names = [f"{_dotted(node.args[0], bound)}.{_text(node.args[1])}"]
        elif text := _text(node):
            names = [text] if " " not in text else []
        for name in names:
            home, _, last = name.rpartition(".")
            if home in modules and last.startswith("_") and not last.startswith("__"):
                yield f"{name}, line {getattr(node, 'lineno', 0)}"


def _bindings(file: Module, modules: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that stand for modules in a file, with the module."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, bound: dict[str, str]) -> str:
    """Return the full name of an expression such as ``module.name``; empty for any other."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    if isinstance(node, ast.Attribute):
        value = _dotted(node.value, bound)
        return f"{value}.{node.attr}" if value else ""
    return ""


def _list_imports(nodes: Iterable[ast.AST]) -> set[str]:
    names = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
