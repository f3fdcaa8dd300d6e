"""What a benchmark takes from another is there: most of them are run by hand, and rarely."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OWN = ("benchmarks", "tools", "examples")
FILES = sorted(path for name in OWN for path in (ROOT / name).rglob("*.py"))


def names(path: Path) -> set[str]:
    """Return what a module binds at its top level, conditional parts too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    return found


def missing(path: Path) -> list[str]:
    """Return the names that a file imports from our own folders and that are not there."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.partition(".")[0] not in OWN:
            continue
        place = ROOT / node.module.replace(".", "/")
        if place.is_dir():
            inside = {one.stem for one in place.iterdir()}
            init = place / "__init__.py"
            inside |= names(init) if init.is_file() else set()
        else:
            module = place.with_suffix(".py")
            if not module.is_file():
                found.append(node.module)
                continue
            inside = names(module)
        found += [f"{node.module}.{one.name}" for one in node.names if one.name not in inside]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_is_there(path: Path) -> None:
    assert missing(path) == []


def test_what_has_moved_away_is_told(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(
        "from benchmarks.speed.race import Race, gone\nfrom benchmarks.nowhere import at_all\n"
    )
    assert missing(file) == ["benchmarks.speed.race.gone", "benchmarks.nowhere"]
