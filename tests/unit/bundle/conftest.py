"""A toy run, its bundle, and where engines unpack."""

import tempfile
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.bundle.pack import pack
from ortune.core.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return studies.study(tmp_path)


@pytest.fixture
def bundle(study: Study, tmp_path: Path) -> Path:
    return pack(study, tmp_path / "toy.ortune")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where engines unpack."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
