"""Commands made of requests: ``--json``, settings files and outputs checked before the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from click.testing import CliRunner

from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say
from ortune.core.errors import OrtuneError
from ortune.core.request import Request, request


@request
class Listing(Request):
    """List models.

    Attributes:
        models: Files.
    """

    models: Sequence[str]


@verb(Listing)
def listing(asked: Listing) -> int:
    """Show them."""
    answer({"models": list(asked.models)}, lambda: say(f"shown {list(asked.models)}"))
    return 0


def test_json_never_takes_a_model_for_its_file() -> None:
    done = CliRunner().invoke(listing, ["--json", "a.onnx", "b.onnx"])
    assert json.loads(done.stdout)["models"] == ["a.onnx", "b.onnx"]


def test_json_to_a_file_shows_the_table_too(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(listing, ["a.onnx", "--json", str(out)])
    assert done.stdout == "shown ['a.onnx']\n"
    assert json.loads(out.read_text())["models"] == ["a.onnx"]


def test_words_after_a_double_dash_are_left_alone() -> None:
    done = CliRunner().invoke(listing, ["--", "--json", "a.json"])
    assert "shown ['--json', 'a.json']" in done.stdout


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere" / "out.json", tmp_path):
        done = CliRunner().invoke(listing, ["a.onnx", f"--json={place}"])
        assert isinstance(done.exception, OrtuneError) and "shown" not in done.stdout


def test_verbs_are_click_commands() -> None:
    assert isinstance(listing, click.Command)
