"""The one JSON object, and tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ortune.cli.terminal import output
from ortune.core.plugins.codec import make_jsonable
from ortune.core.trial import Interval
from ortune.core.version import __version__


def test_the_json_object_carries_the_version() -> None:
    assert json.loads(output.as_json({"x": 1})) == {"ortune": __version__, "x": 1}


def test_what_json_lacks_becomes_plain() -> None:
    found = make_jsonable(
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


def test_a_table_shows_every_cell_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "ms>"), [("cpu [bold]x[/bold]", 1.5)])
    assert "cpu [bold]x[/bold]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1580229, "1.6 MB"), (4.2e9, "4.2 GB")]
)
def test_size(count: float, text: str) -> None:
    assert output.format_size(count) == text


@pytest.mark.parametrize(("count", "text"), [(7, "7"), (389_000, "389.00 k"), (4.1e12, "4.10 T")])
def test_amount(count: float, text: str) -> None:
    assert output.format_amount(count) == text
