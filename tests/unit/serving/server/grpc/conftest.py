"""Servers of tests end at once."""

import pytest

from ortune.serving.server.grpc import server


@pytest.fixture(autouse=True)
def _no_lame_duck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAME_DUCK_S", 0.0)
