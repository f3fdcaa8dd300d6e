"""Commands made of requests: ``--json``, settings files and outputs checked before the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from ortune.cli.terminal import command
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.errors import OrtuneError
from ortune.core.event import Event, Note, ignore_event
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
        assert caught.value.fix == "use one of: least_db, per_day, seconds"


@request
class Price(Request):
    """Price FILES.

    Example:
        ortune price a.json --rate 2

    Attributes:
        files: What was measured.
        rate: An hour's.
        months: How long.
    """

    files: Sequence[str]
    rate: Annotated[float, Option(word="--rate")]
    _: KW_ONLY
    months: int = 6


@request
class Life(Request):
    """Time MODEL over its life.

    Everything is measured.

    Example:
        ortune price m.onnx --life --starts 9

    Attributes:
        model: The file.
        starts: Fresh processes.
        months: How long; longer than a price.
    """

    model: str | Path
    _: KW_ONLY
    starts: int = 3
    months: int = 12


@make_command(Price, {"life": Life})
def pricing(asked: Price | Life) -> int:
    """Show what was asked."""
    print_text(f"{type(asked).__name__} {replace(asked, sink=ignore_event)}")
    return 0


def test_a_flag_asks_another_request_with_its_own_defaults() -> None:
    def ask(*words: str) -> str:
        return CliRunner().invoke(pricing, words, catch_exceptions=False).stdout.strip()

    assert ask("a", "b", "--rate", "2") == "Price Price(files=('a', 'b'), rate=2.0, months=6)"
    assert ask("a", "--life") == "Life Life(model='a', starts=3, months=12)"
    assert ask("--life", "a", "--months", "1", "--starts", "9").endswith("starts=9, months=1)")


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["a", "--rate", "2", "--starts", "9"], "--starts needs --life", "add --life"),
        (["a", "--life", "--rate", "2"], "--rate cannot be combined with --life", "leave one"),
        (["a", "b", "c", "--life"], "--life takes one model, and 3 are given", "leave out b, c"),
    ],
)
def test_options_of_another_form_are_refused(words: list[str], what: str, fix: str) -> None:
    with pytest.raises(OrtuneError) as caught:
        CliRunner().invoke(pricing, words, catch_exceptions=False)
    assert caught.value.what == what and caught.value.fix.startswith(fix)


@pytest.mark.parametrize(("words", "name"), [(["a"], "--rate"), (["--life"], "FILES")])
def test_what_a_form_needs_is_demanded(words: list[str], name: str) -> None:
    done = CliRunner().invoke(pricing, words)
    assert (
        done.exit_code == 2
        and f"Missing {'option' if '--' in name else 'argument'}" in done.stderr
    )
    assert name in done.stderr


def test_a_settings_file_asks_for_a_form(tmp_path: Path) -> None:
    file = tmp_path / "life.toml"
    file.write_text('files = ["a"]\nlife = true\nstarts = 4\n')
    assert "Life(model='a', starts=4" in CliRunner().invoke(pricing, [str(file)]).stdout
    file.write_text('files = ["a"]\nlife = false\nrate = 2\n')
    assert CliRunner().invoke(pricing, [str(file)]).stdout.startswith("Price ")


def test_the_help_has_all_forms() -> None:
    text = " ".join(CliRunner().invoke(pricing, ["--help"]).stdout.split())
    for part in (
        "With --life: everything is measured.",
        "ortune price a.json --rate 2 ortune price m.onnx --life --starts 9",
        "An hour's. [required without --life]",
        "With --life: --life Instead, time MODEL over its life.",
        "--starts INTEGER Fresh processes.",
    ):
        assert part in text


def test_held_notes_are_told_behind_the_work_and_never_before_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Event] = []
    request = Request(sink=told.append)

    def work(asked: Request, *, fails: bool = False) -> list[Event]:
        asked.sink(Note("made up"))
        if fails:
            raise ValueError
        return [*told]

    monkeypatch.setattr(command, "is_verbose", lambda: False)
    assert command.run_before_notes(work, request) == []
    assert told == [Note("made up")]
    with pytest.raises(ValueError):
        command.run_before_notes(partial(work, fails=True), request)
    assert told == [Note("made up")]
    monkeypatch.setattr(command, "is_verbose", lambda: True)
    assert command.run_before_notes(work, request) == told == 2 * [Note("made up")]
