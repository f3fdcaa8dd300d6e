"""The digest of a module's code and of all that it imports from its distribution."""

import ast
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

_OWN = "ortune"
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
_LOADED = re.compile(r'\bcatalog\.load_plugin\(\s*\w+,\s*"([\w-]+)"')


@dataclass(frozen=True)
class _Source:
    """What is read off one module's file."""

    code: str  # digest of its syntax tree without docstrings; comments and layout do not count
    # Modules, and members of modules, that it imports, wherever in the file; not those that only a
    # type checker sees.
    imports: frozenset[str]
    loads: frozenset[str]  # names of plugins that it takes from the catalog


def digest_module(module: str, plugins: Callable[[str], list[str]]) -> str:
    """Digest a module and what it imports from its own distribution and from ortune, at any depth.

    The ``__init__`` of the packages above it runs first and counts too, but for ortune's own,
    which is a list of names. Empty where the module has no source file.

    Args:
        module: Its full name.
        plugins: Name of a plugin -> the modules that it may stand for.
    """
    homes = {_OWN, module.partition(".")[0]}
    seen, pending = {_OWN}, [module]
    codes = set()
    while pending:
        name = pending.pop()
        if name in seen or name.partition(".")[0] not in homes:
            continue
        seen.add(name)
        pending.append(name.rpartition(".")[0])
        if (file := find_module_file(name)) is not None:
            source = read_module_source(file, name)
            codes.add(source.code)
            pending += source.imports
            pending += [target for plugin in source.loads for target in plugins(plugin)]
    return hashlib.sha256("".join(sorted(codes)).encode()).hexdigest()[:16] if codes else ""


@cache
def find_module_file(module: str) -> Path | None:
    """Return a module's file without importing it; None for what is no module, such as a class."""
    top, *below = module.split(".")
    package = importlib.import_module(top)
    if not below:
        file = getattr(package, "__file__", None)  # a notebook has none
        return Path(file) if file else None
    for home in getattr(package, "__path__", ()):
        stem = Path(home, *below)
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def read_module_source(file: Path, module: str) -> _Source:
    """Read a module's file, once in a process: what runs is what it held when it was imported."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imports = frozenset(
        name for statement in _find_imports(tree) for name in _list_targets(statement, package)
    )
    code = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return _Source(code, imports, frozenset(_LOADED.findall(text)))


def _find_imports(block: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a block at any depth, and drop its docstrings on the way."""
    for field in _BLOCKS:
        kept = [
            statement
            for statement in getattr(block, field, ())
            if not (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            )
        ]
        if kept and isinstance(kept, list):
            setattr(block, field, kept)
        for statement in kept:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                yield statement
            elif isinstance(statement, ast.If) and ast.unparse(statement.test).endswith(
                "TYPE_CHECKING"
            ):
                statement.body = []
                yield from _find_imports(statement)
            else:
                yield from _find_imports(statement)


def _list_targets(statement: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    module = statement.module or ""
    if statement.level:
        module = resolve_name("." * statement.level + module, package)
    return [f"{module}.{alias.name}" for alias in statement.names]
