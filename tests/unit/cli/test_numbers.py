"""Every option of every verb that takes a number refuses what is none, before anything is read."""

import math

import click
import pytest

from ortune.cli.main import BAD, main, root
from ortune.core import fields
from ortune.core.plugins import bounds
from ortune.core.request import list_request_fields

_READERS = (fields.Duration, fields.ByteSize, fields.Counts)
_TEXTS = {"--price", "--load", "--overhead", "--effort", "--gpus", "--picture-size", "--budget"}
"""Texts with a number in them; each verb has tests of its own for what they say."""


def _verbs():
    ctx = click.Context(root)
    return {name: root.get_command(ctx, name) for name in root.list_commands(ctx)}


def _takes_numbers(one) -> bool:
    name = type(one.reader).__name__ if one.reader else ""
    return bool(
        {int, float} & one.kinds
        or isinstance(one.reader, _READERS)
        or name in ("Thresholds", "OptionalDuration")
    )


def _numeric():
    """Return verb and option of all that hold numbers: a new one is tested without being named."""
    found = []
    for name, command in _verbs().items():
        options = {param.name: param.opts[0] for param in command.params}
        for one in list_request_fields(command.request):
            option = options.get(one.name, "")
            if option.startswith("--") and (_takes_numbers(one) or option in _TEXTS):
                found.append((name, option))
    return found


_EVERY = [pair for pair in _numeric() if pair[1] != "--beside-load"]


def test_that_the_options_are_found():
    assert len(_EVERY) > 50
    assert ("optimize", "--time") in _EVERY
    assert ("bench", "--threads") in _EVERY


@pytest.mark.parametrize(("verb", "option"), _EVERY, ids=map(" ".join, _EVERY))
def test_no_option_takes_what_is_no_sensible_number(verb, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = _verbs()[verb]
    words = [
        str(tmp_path / "none.onnx")
        for one in command.params
        if isinstance(one, click.Argument) and (one.required or one.nargs == -1)
    ]
    needed = [
        word
        for one in command.params
        if isinstance(one, click.Option) and one.required and option not in one.opts
        for word in (one.opts[0], "1/h" if "price" in one.opts[0] else str(tmp_path / "out"))
    ]
    for value in ("nan", "inf", "-inf", "-1", "1e999", "9" * 400):
        if value == "-1" and option in ("--budget", "--least-db"):
            continue  # decibels may be negative: more noise than signal
        given = f"top1>={value}" if option == "--budget" else value
        assert main([verb, *words, *needed, f"{option}={given}"]) == BAD
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 2, said
        assert "  fix: " in said
        first = said.partition("fix:")[0]
        assert "none.onnx" not in first, f"{option} was not looked at first: {said}"
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", list(_verbs()))
def test_every_number_in_python_has_bounds(verb):
    for one in list_request_fields(_verbs()[verb].request):
        for value in (math.nan, math.inf, -math.inf):
            with pytest.raises(Exception, match="not a finite number"):
                one.option.check(one.name, value)
        assert one.option.high <= max(bounds.HIGHEST, 2**60) or one.name == "ranges"
