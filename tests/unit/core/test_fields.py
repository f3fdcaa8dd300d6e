"""What is spelled is read as what it means."""

from __future__ import annotations

import pytest

from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.fields import ByteSize, Duration, InputRanges, InputShapes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("3m", 180), ("1h30m", 5400), ("0.5m", 30)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert Duration(1).read(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "3x", "-3m", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OrtuneError, match="duration"):
        Duration(1).read(text)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("2k", 2048), ("1.5G", 1610612736)])
def test_bytes(text: str, count: int) -> None:
    assert ByteSize(None).read(text) == count


def test_what_is_no_size() -> None:
    with pytest.raises(OrtuneError, match="size"):
        ByteSize(None).read("lots")


def test_shapes_are_parsed() -> None:
    texts = ["x:1x3x320x320", "input:0:2", "rate:"]
    assert InputShapes(None).read(texts) == {"x": (1, 3, 320, 320), "input:0": (2,), "rate": ()}
    assert InputShapes(None).read([]) == {}


def test_ranges_are_parsed() -> None:
    texts = ["ids:0..30521", "x:-1.5..1e3", "input:0:.5..2", "rate:16000"]
    assert InputRanges(None).read(texts) == {
        "ids": (0, 30521),
        "x": (-1.5, 1000),
        "input:0": (0.5, 2),
        "rate": (16000, 16000),
    }


@pytest.mark.parametrize("text", ["x", "x:1x", ":1x2", "x:1x-2", "x:axb", "x:1,2", ""])
def test_shapes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadSettings, match=r"cannot read shape .*\n  fix: write input:1x3x320x320"):
        InputShapes(None).read([text])


@pytest.mark.parametrize("text", ["x", "x:", "x:a..b", "x:1-2", ":1..2", "x:1..", "x:nan"])
def test_ranges_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadSettings, match=r"cannot read range .*\n  fix: "):
        InputRanges(None).read([text])


def test_ranges_and_shapes_that_make_no_sense() -> None:
    with pytest.raises(BadSettings, match="ends before it begins"):
        InputRanges(None).read(["x:2..1"])
    with pytest.raises(BadSettings, match="two ranges for input 'x'"):
        InputRanges(None).read(["x:1..2", "x:1..2"])
    with pytest.raises(BadSettings, match="two shapes for input 'x'"):
        InputShapes(None).read(["x:1", "x:2"])
