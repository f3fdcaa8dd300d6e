"""No text writes a number before a plural noun by hand: one is then "1 nodes"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ortune.core import wording

SOURCES = Path(__file__).parents[2] / "src" / "ortune"
NOUNS = (
    "activations|axes|bins|bits|blocks|channels|classes|columns|convolutions|copies|dimensions|"
    "divisions|edits|elements|files|groups|inferences|inputs|items|kernels|keys|kinds|layers|"
    "lengths|models|nodes|numbers|observers|operators|outputs|pairs|parameters|patterns|plans|"
    "positions|processes|ranges|records|regions|rows|runs|samples|sessions|steps|tables|tensors|"
    "threads|trials|units|values|weights"
)
VERBS = "asks|defines|has|holds|is|lacks|needs|reads|returned|returns|runs|takes|was|with|without"
PLURAL = re.compile(rf" (?!(?:{VERBS}|of|the) |runs a\b)(?:[a-z0-9-]+ )?(?:{NOUNS})\b")
MEASURED = re.compile(r"[fge%]$")
NAMES = ("name.lower()", "__name__", "name()")
"""How values end that are words and no numbers: ``float16 weights``."""
MANY = ("_GROUP",)
"""Constants above 1."""


def found(text: str) -> list[str]:
    """Return the places in a source that write a number, a blank and a plural noun."""
    places = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                written, noun = ast.unparse(value.value), PLURAL.match(str(after.value))
                form = ast.unparse(value.format_spec)[2:-1] if value.format_spec else ""
                other = written.endswith(NAMES) or written in MANY or "count(" in written
                if noun and not other and not MEASURED.search(form):
                    places.append(f"{value.lineno}: {{{written}}}{noun[0]}")
    return places


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('f"{n} nodes"', ["1: {n} nodes"]),
        ('f"{len(rows):,} more rows here"', ["1: {len(rows)} more rows"]),
        ('f"{n:.2f} seconds, {n:.1f} runs"', []),
        ("f\"{count(n, 'node')}, {dtype.name.lower()} weights, {n} node\"", []),
        ('f"{op} without two inputs, {n} of the runs"', []),
    ],
)
def test_the_scan_finds_what_it_is_for(text: str, places: list[str]) -> None:
    assert found(text) == places


@pytest.mark.parametrize("folder", sorted(p.name for p in SOURCES.iterdir() if p.is_dir()))
def test_no_number_stands_before_a_plural_by_hand(folder: str) -> None:
    places = [
        f"{path.relative_to(SOURCES)}:{place}"
        for path in sorted((SOURCES / folder).rglob("*.py"))
        for place in found(path.read_text(encoding="utf-8"))
    ]
    assert not places, "use ortune.core.wording.count"


def test_a_count_is_one_or_many() -> None:
    assert wording.count(1, "node") == "1 node"
    assert wording.count(0, "node") == "0 nodes"
    assert wording.count(1200, "process", "processes") == "1,200 processes"
