"""The documentation has the list of what ours answers otherwise than Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tritonclient.grpc")

from tests.packages.conformance.differences import table

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_page_has_the_list() -> None:
    text = PAGE.read_text()
    between = text.partition("<!-- differences -->")[2].partition("<!-- end of differences -->")[0]
    assert between.strip() == table(), "write tests.packages.conformance.differences.table() there"
