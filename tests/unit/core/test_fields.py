"""What is spelled is read as what it means."""

from __future__ import annotations

import pytest

from ortune.core.errors import OrtuneError
from ortune.core.fields import ByteSize, Duration


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
