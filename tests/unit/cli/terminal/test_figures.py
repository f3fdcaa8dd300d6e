"""Sizes and counts with their units."""

from __future__ import annotations

import pytest

from ortune.cli.terminal import figures


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1580229, "1.6 MB"), (4.2e9, "4.2 GB")]
)
def test_size(count: float, text: str) -> None:
    assert figures.size(count) == text


@pytest.mark.parametrize(("count", "text"), [(7, "7"), (389_000, "389.00 k"), (4.1e12, "4.10 T")])
def test_amount(count: float, text: str) -> None:
    assert figures.amount(count) == text
