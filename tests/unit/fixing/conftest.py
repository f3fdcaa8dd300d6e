"""Where situations are: a folder of their own, in which commands are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.following import Room


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.chdir(tmp_path)
    return Room(tmp_path, monkeypatch)
