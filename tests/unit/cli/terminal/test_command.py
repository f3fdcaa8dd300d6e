"""Commands made of requests: ``--json``, settings files and outputs checked before the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.errors import OrtuneError
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class Listing(Request):
    """List models.

    Attributes:
        models: Files.
    """

    models: Sequence[str]


@make_command(Listing)
def listing(asked: Listing) -> int:
    """Show them."""
    print_result({"models": list(asked.models)}, lambda: print_text(f"shown {list(asked.models)}"))
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


@request
class Weighing(Request):
    """Weigh.

    Attributes:
        least_db: 0 or more.
        per_day: 0 or more.
        seconds: At least 0.1.
    """

    _: KW_ONLY
    least_db: float = 100.0
    per_day: Annotated[float, Option(word="--a-day")] = 24.0
    seconds: Annotated[float, Option(low=0.1)] = 1.0


@make_command(Weighing)
def weighing(asked: Weighing) -> int:
    """Show one."""
    print_text(f"per day {asked.per_day}")
    return 0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e300"])
@pytest.mark.parametrize("option", ["--least-db", "--seconds", "--a-day"])
def test_numbers_that_are_none_are_refused_by_the_option_that_was_written(
    option: str, value: str
) -> None:
    done = CliRunner().invoke(weighing, [option, value])
    assert option in f"{done.exception} {done.stderr}" and "per day" not in done.stdout


def test_a_settings_file_takes_fields_and_the_words_of_options(tmp_path: Path) -> None:
    file = tmp_path / "weigh.toml"
    for key in ("per_day", "a_day"):
        file.write_text(f"{key} = 3\n")
        assert CliRunner().invoke(weighing, [str(file)]).stdout == "per day 3.0\n"


def test_a_settings_file_has_no_keys_that_are_of_one_call_alone(tmp_path: Path) -> None:
    file = tmp_path / "weigh.toml"
    for key in ("more", "json_to", "wrong"):
        file.write_text(f"{key} = true\n")
        with pytest.raises(OrtuneError, match=f"unknown setting '{key}'") as caught:
            CliRunner().invoke(weighing, [str(file)], catch_exceptions=False)
        assert caught.value.fix == "use least_db, per_day, seconds"
