"""Tutorials are run as they stand: files are written, commands run, their output is checked.

`first-model.md` is followed by test_newcomer.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ortune.cli.main import main

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w./]+\.py)\n")


PAGES = sorted({path.name for path in FOLDER.glob("*.md")} - {"first-model.md"})


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _BLOCK.findall((FOLDER / page).read_text(encoding="utf-8"))
    assert len(blocks) > 3
    shown = 0
    for kind, text in blocks:
        if kind == "python":
            named = _FILE.match(text)
            if named:
                Path(named[1]).write_text(text, encoding="utf-8")
            else:
                exec(compile(text, page, "exec"), {})
        else:
            assert kind == "console"
            shown += commands(text, capsys)
    assert shown >= 5


def commands(text: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Run each line behind ``$``; what follows it must be shown, in order. Return how many."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    for part in parts:
        line, *wanted = part.splitlines()
        program, *words = shlex.split(line)
        capsys.readouterr()
        if program == "ortune":
            code = 1 if any("rolled back" in shown for shown in wanted) else 0
            assert main(words) == code, capsys.readouterr().err
        else:
            assert program == "python"
            subprocess.run([sys.executable, *words], check=True, env={**os.environ})
        found = squeezed(capsys.readouterr().out)
        for expected in filter(None, map(squeezed, wanted)):
            assert expected in found, f"{line}: {expected!r} is not in {found!r}"
    return len(parts)


def squeezed(text: str) -> str:
    """Leave out the times, the rules of tables, and white space beyond single blanks."""
    plain = re.sub(r"\b\d+\.\d\b(?! (?:dB|kB|MB))", "", text.replace("─", ""))
    return " ".join(plain.split())
