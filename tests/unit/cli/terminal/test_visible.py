"""Names in files cannot steer a terminal, wherever they are shown."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from tests.hostile import ESC

import ortune.cli
from ortune.cli.terminal import output, progress
from ortune.core.errors import BadModel, escape_control_chars
from ortune.core.event import Note

CLI = Path(ortune.cli.__file__).parent
WRITERS = {"output.py", "main.py"}
WRITES = {"print", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write"}
SHOWN = "\\x1b[31mred\\x1b]0;title\\x07\\u202e"


def test_what_steers_is_spelled_out_and_nothing_else() -> None:
    assert escape_control_chars(ESC) == SHOWN
    assert (
        escape_control_chars("a\tb\nc \u00e9\u4e2d\U0001f600") == "a\tb\nc \u00e9\u4e2d\U0001f600"
    )
    assert escape_control_chars("\x00\r\x7f\x9b\u2028\u2066\udcff") == (
        "\\x00\\x0d\\x7f\\x9b\\u2028\\u2066\\udcff"
    )


def test_errors_are_safe_to_print() -> None:
    error = BadModel(f"no {ESC}", fix=f"not {ESC}")
    assert str(error) == f"no {SHOWN}\n  fix: not {SHOWN}"
    assert (error.what, error.fix) == (f"no {SHOWN}", f"not {SHOWN}")


def test_lines_tables_and_notes_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_text(ESC)
    output.write_remark(ESC)
    output.print_table((f"name{ESC}",), [(ESC,)], title=ESC)
    output.print_items(Text(ESC), Panel(ESC))
    progress.Display(live=False).show_event(Note(ESC, True))
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert SHOWN in said.out
    assert f"warning: {SHOWN}" in said.err


def test_a_terminal_keeps_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", shown := Terminal())
    table = Table("name")
    table.add_row(Text(ESC, style="green"))
    output.print_items(table)
    assert "\\x1b[31mred" in shown.getvalue()
    assert "\x1b[31m" not in shown.getvalue()
    assert "\x1b[32m" in shown.getvalue()


def test_text_goes_to_the_terminal_in_one_place() -> None:
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in CLI.rglob("*.py")
        if path.name not in WRITERS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES
    ]
    assert not wrong
