"""Check how a package is laid out: sizes of files and packages, import circles, floors, names.

    python -m tools.layout src/ortune

prints the figures and every violation, and exits with 1 where there is one. The limits are data:
`Limits`. Floors are read from the import-linter contracts of the nearest pyproject.toml.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tools.layout.rules import check, circles, upward
from tools.layout.tree import Tree


def figures(tree: Tree) -> dict[str, object]:
    """Return what to watch."""
    kinds = Counter(kind for module in tree.modules.values() for kind in module.kinds)
    free = (*tree.limits.plugin_folders, *tree.limits.listings)
    rooms = {p: n for p, n in tree.levels.items() if p.partition(".")[2] not in free}
    functions = [(n, m, f) for m, module in tree.modules.items() for f, n in module.functions]
    return {
        "modules": len(tree.modules),
        "modules at one level": max((n, p) for p, n in rooms.items()),
        "longest file": max((len(m.lines), name) for name, m in tree.modules.items()),
        "longest function": max(functions, default=0),
        "import circles": len(list(circles(tree))),
        "upward imports": len(list(upward(tree))),
        "lines": sum(kinds.values()),
        "lines of code": kinds["code"],
        "lines of imports": kinds["import"],
        "lines of docstrings": kinds["docstring"],
    }


def main(root: str) -> int:
    """Print figures and violations of a package."""
    tree = Tree(Path(root))
    for name, value in figures(tree).items():
        print(f"{name}: {' '.join(map(str, value)) if isinstance(value, tuple) else value}")
    found = check(tree)
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
