"""Code in strings, which no type checker reads, names what is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"from (ortune[\w.]*) import \(?([\w, ]+)")


def list_code() -> list[tuple[str, str]]:
    """Return place and text of every string that imports something of ortune."""
    texts = []
    for folder in ("src", "tests", "benchmarks", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == Path(__file__):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = (p.value for p in node.values if isinstance(p, ast.Constant))
                    text = "\0".join(map(str, parts))
                else:
                    continue
                if IMPORT.search(text):
                    texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return texts


def find_missing(text: str) -> list[str]:
    """Return what a piece of code takes of ortune's modules and is not there."""
    missing = []
    for found in IMPORT.finditer(text):
        home = importlib.import_module(found[1])
        for clause in filter(None, map(str.split, found[2].split(","))):
            name, alias = clause[0], clause[-1]
            try:
                value = getattr(home, name, None) or importlib.import_module(f"{found[1]}.{name}")
            except ImportError:
                missing.append(f"{found[1]}.{name}")
                continue
            uses = re.findall(rf"(?<![\w.]){alias}\.(\w+)", text)
            if isinstance(value, ModuleType):
                missing += [f"{alias}.{use}" for use in uses if not hasattr(value, use)]
    return missing


def test_code_in_strings_names_what_is_there() -> None:
    code = list_code()
    assert len(code) > 20
    assert {place: names for place, text in code if (names := find_missing(text))} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from ortune.core import wording\nwording.no_such()", ["wording.no_such"]),
        ("from ortune.core.wording import no_such", ["ortune.core.wording.no_such"]),
        ("from ortune.core import wording as say\nsay.format_count(1)", []),
    ],
)
def test_what_is_not_there_is_found(text: str, names: list[str]) -> None:
    assert find_missing(text) == names
