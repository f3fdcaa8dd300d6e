"""Outputs are never written over something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.core.errors import OrtuneError
from ortune.core.outputs import free


def test_a_free_output_is_returned(tmp_path: Path) -> None:
    assert free(tmp_path / "new.onnx", False) == tmp_path / "new.onnx"


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(b"")
    with pytest.raises(OrtuneError, match="exists"):
        free(path, False)
    assert free(path, True) == path


def test_the_source_is_never_the_output_even_with_force(tmp_path: Path) -> None:
    source, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"model")
    link.symlink_to(source)
    with pytest.raises(OrtuneError, match="source"):
        free(link, True, source)


def test_an_output_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="no folder"):
        free(tmp_path / "none" / "m.onnx", False)
    with pytest.raises(OrtuneError, match="is a folder"):
        free(tmp_path, True)
