"""The sizes that an export is compared at, and the one it is traced with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.data.stream import Stream
from ortune.exporters.export import name_dimensions, size_to_trace

IMAGE, IDS = TensorSpec("image", "float32", (1, 3, 8, 8)), TensorSpec("ids", "int64", (1, 16), 50)
AXES = (("image", 0, "batch"), ("ids", 0, "batch"), ("ids", 1, "length"))


def test_every_dimension_grows_beyond_the_example() -> None:
    found = name_dimensions((IMAGE, IDS), AXES)
    assert found.specs[1].shape == ("batch", "length")
    assert found.axes == AXES
    tried = found.sizes()
    assert tried[:3] == [
        {"batch": 1, "length": 16},
        {"batch": 2, "length": 17},
        {"batch": 3, "length": 33},
    ]
    assert {"batch": 2, "length": 32} in tried, "multiples, where PyTorch takes no others"
    assert any(one["length"] < 16 for one in tried), "smaller ones, where it takes no larger"


def test_without_a_dynamic_dimension_there_is_one_size() -> None:
    assert name_dimensions((IMAGE,), ()).sizes() == [{}]


def test_it_is_traced_where_no_dimension_is_1() -> None:
    tried = name_dimensions((IMAGE, IDS), AXES).sizes()[:3]
    assert size_to_trace(tried) == 1
    assert size_to_trace([{}]) == 0


def test_inputs_are_made_up_at_a_size(tmp_path: Path) -> None:
    found = name_dimensions((IMAGE, IDS), AXES)
    path = found.write(tmp_path, {"batch": 2, "length": 5}, {"ids": (7, 9), "other": (0, 1)}, 3, 0)
    rows = list(Stream(path))
    assert len(rows) == 3
    assert rows[0]["image"].shape == (2, 3, 8, 8)
    assert all(((row["ids"] >= 7) & (row["ids"] <= 9)).all() for row in rows)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ((("sound", 0, "batch"),), "no input of the module"),
        ((("ids", 2, "batch"),), "of 2 axes"),
        ((("image", 0, "n"), ("image", 1, "n")), "1 and 3"),
    ],
)
def test_what_does_not_fit_the_inputs_is_said(
    axes: tuple[tuple[str, int, str], ...], said: str
) -> None:
    with pytest.raises(BadSettings, match=said):
        name_dimensions((IMAGE, IDS), axes)
