"""Puts the recorded API where TensorRT would be, with one transcript."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
TYPED = {"10.16": 2, "11.4": 1}
"""What the flag for strongly typed networks is, as a number, in each release's bindings."""
_MODULES = ("replay", "tensorrt", "cuda", "cuda.bindings", "cuda.bindings.runtime")


def until(name: str, line: str = "") -> str:
    """Return a part of a transcript, up to the first line that begins so."""
    text = (HERE / "transcripts" / f"{name}.txt").read_text(encoding="utf-8")
    return text.partition(f"\n{line}")[0] + "\n" if line else text


def written(
    folder: Path,
    parts: Sequence[str],
    arrays: Mapping[str, Any],
    api: str = "10.16",
    name: str = "transcript",
) -> Path:
    """Write a transcript of lines and of named parts, and its arrays beside it."""
    lines = [until(part) if part.isidentifier() else part for part in parts]
    path = folder / f"{name}.txt"
    path.with_suffix(".rest").unlink(missing_ok=True)
    path.write_text("\n".join(lines).replace("TYPED", str(TYPED[api])), encoding="utf-8")
    np.savez(path.with_suffix(".npz"), **arrays)
    return path


def play(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *parts: str, api: str = "10.16", **arrays: Any
) -> Any:
    """Replay parts in this process and return the transcript, which says what never came."""
    monkeypatch.setenv("ORTUNE_TRANSCRIPT", str(written(folder, parts, arrays, api)))
    monkeypatch.setenv("ORTUNE_TRANSCRIPT_API", api)
    monkeypatch.syspath_prepend(str(HERE))
    for name in _MODULES:
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is taken out at the end
        del sys.modules[name]
    return import_module("replay").transcript()
