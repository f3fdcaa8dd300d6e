"""JSON to dataclasses: what is wrong with a file is said in the file's words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ortune.core.errors import BadSettings
from ortune.core.plugins import codec


@dataclass(frozen=True)
class _Row:
    name: str
    size: int
    note: str = ""


def test_fields_that_are_missing_are_named() -> None:
    with pytest.raises(BadSettings) as caught:
        codec.build(_Row, {"note": "x"})
    assert caught.value.what == "Row lacks 'name, size'"


def test_what_has_a_default_may_be_missing() -> None:
    assert codec.build(_Row, {"name": "a", "size": 1}) == _Row("a", 1)
