"""The one JSON object, and outputs that are never written over something else."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from ortune.cli import shared
from ortune.core.errors import OrtuneError
from ortune.core.trial import Interval


@shared.verb(shared.Verb)
@shared.models
def listing(models: tuple[Path, ...], json_to: str | None, verbose: bool) -> int:
    """List models."""
    names = [str(model) for model in models]
    shared.answer(json_to, {"models": names}, lambda: shared.say(f"shown {names}"))
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


def test_the_json_object_carries_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    shared.answer("-", {"x": 1}, lambda: pytest.fail("not shown with --json"))
    assert json.loads(capsys.readouterr().out) == {"ortune": shared.version(), "x": 1}


def test_what_json_lacks_becomes_plain() -> None:
    found = shared.plain(
        {
            "nan": float("nan"),
            "inf": [float("inf"), 1.5],
            "path": Path("a"),
            "number": np.float32(0.5),
            "array": np.array([[1, 2]]),
            "bad": np.array([np.nan]),
            "core": Interval(1.0, 0.5, float("nan")),
        }
    )
    assert found == {
        "nan": None,
        "inf": [None, 1.5],
        "path": "a",
        "number": 0.5,
        "array": [[1, 2]],
        "bad": [None],
        "core": {"value": 1.0, "low": 0.5, "high": None},
    }


def test_a_free_output_is_returned(tmp_path: Path) -> None:
    assert shared.free(tmp_path / "new.onnx", False) == tmp_path / "new.onnx"


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(b"")
    with pytest.raises(OrtuneError, match="exists"):
        shared.free(path, False)
    assert shared.free(path, True) == path


def test_the_source_is_never_the_output_even_with_force(tmp_path: Path) -> None:
    source, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"model")
    link.symlink_to(source)
    with pytest.raises(OrtuneError, match="source"):
        shared.free(link, True, source)


def test_an_output_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="no folder"):
        shared.free(tmp_path / "none" / "m.onnx", False)
    with pytest.raises(OrtuneError, match="is a folder"):
        shared.free(tmp_path, True)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1580229, "1.6 MB"), (4.2e9, "4.2 GB")]
)
def test_size(count: float, text: str) -> None:
    assert shared.size(count) == text


@pytest.mark.parametrize(("count", "text"), [(7, "7"), (389_000, "389.00 k"), (4.1e12, "4.10 T")])
def test_amount(count: float, text: str) -> None:
    assert shared.amount(count) == text


def test_a_table_shows_every_cell_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shared.table(("name", "ms>"), [("cpu [bold]x[/bold]", 1.5)])
    assert "cpu [bold]x[/bold]" in capsys.readouterr().out


def test_verbs_are_click_commands() -> None:
    assert isinstance(listing, click.Command)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("3m", 180), ("1h30m", 5400), ("0.5m", 30)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert shared.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "3x", "-3m", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OrtuneError, match="duration"):
        shared.seconds(text)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("2k", 2048), ("1.5G", 1610612736)])
def test_bytes(text: str, count: int) -> None:
    assert shared.bytes_of(text) == count


def test_what_is_no_size() -> None:
    with pytest.raises(OrtuneError, match="size"):
        shared.bytes_of("lots")
