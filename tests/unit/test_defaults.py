"""What users run by default is what is measured: benchmarks and end-to-end tests do the same.

Options of `optimize` in which one differs from the defaults stand in `tests/defaults.toml`, each
with its reason. ``python -m tests.unit.test_defaults`` lists them.
"""

from __future__ import annotations

import ast
import shlex
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from ortune.core.request import list_request_fields
from ortune.search.request import Optimize

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "tests/e2e")
REASONS: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "tests" / "defaults.toml").read_text(encoding="utf-8")
)["difference"]
FIELDS = {
    spec.name: spec.option.word or f"--{spec.name}" for spec in list_request_fields(Optimize)
}
"""Option of `optimize` -> how it is written on the command line."""
WORDS = {
    word.removeprefix("--").replace("-", "_").removeprefix("no_"): name
    for name, words in FIELDS.items()
    for word in (*words.split(), f"--{name}")
}


def list_options(source: str) -> set[str]:
    """Return the options of `optimize` that a module sets, or one of another verb named alike.

    Keywords and keys of a module that calls it, and words of functions that spell its command.
    """
    tree, options = ast.parse(source), set[str]()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(ast.unparse(call.func).split(".")[-1] in ("optimize", "Optimize") for call in calls):
        keywords = (keyword.arg for call in calls for keyword in call.keywords)
        keys = (
            key.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant)
        )
        options |= {name for name in (*keywords, *keys) if name in FIELDS}
    for scope in tree.body:
        words = [word for text in _list_texts(scope) for word in _split_words(text)]
        if "optimize" in words:
            spelled = (word.partition("=")[0] for word in words if word.startswith("--"))
            names = (word[2:].replace("-", "_").removeprefix("no_") for word in spelled)
            options |= {WORDS[name] for name in names if name in WORDS}
    return options


def _list_texts(scope: ast.AST) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def list_differences() -> list[tuple[str, str]]:
    """Return file and option of every difference."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [
        (str(path.relative_to(ROOT)), option)
        for path in paths
        for option in sorted(list_options(path.read_text(encoding="utf-8")))
    ]


def find_reason(file: str, option: str) -> dict[str, Any] | None:
    """Return the row that gives the reason of a difference."""
    for row in REASONS:
        if option in row["options"] and any(fnmatch(file, pattern) for pattern in row["files"]):
            return row
    return None


def test_no_difference_is_without_a_reason() -> None:
    without = [where for where in list_differences() if find_reason(*where) is None]
    assert not without, "options of a search that differ from what users run, without a reason"


def test_every_reason_is_of_a_difference() -> None:
    differences = list_differences()
    assert len(differences) > 20
    for row in REASONS:
        assert row["reason"].strip()
        for option in row["options"]:
            files = [file for file, name in differences if name == option]
            for pattern in row["files"]:
                assert any(fnmatch(file, pattern) for file in files), (option, pattern)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("ot.optimize(model, regions=False, time=3)", {"regions", "time"}),
        ("given = {'strict': True}\nOptimize('m.onnx', **given)", {"strict"}),
        ("def f():\n    run('optimize', 'm.onnx', '--no-regions', '-o', 'run')", {"regions"}),
        ("words = 'optimize m.onnx --target-speedup 2 --time=3s'", {"target_speedup", "time"}),
        ("def f():\n    run('bench', 'm.onnx', '--time', '3s')", set()),
        ("bench(model, time=3)", set()),
    ],
)
def test_what_a_module_sets_is_seen(source: str, options: set[str]) -> None:
    assert list_options(source) == options


if __name__ == "__main__":
    for where in list_differences():
        row = find_reason(*where)
        sys.stdout.write(f"{where[0]} {where[1]} | {row['reason'] if row else 'NO REASON'}\n")
