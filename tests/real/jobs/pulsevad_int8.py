"""PulseVAD's QDQ twin: a model that arrives quantized."""

from __future__ import annotations

from pathlib import Path

from tests.real.jobs import pulsevad
from tests.real.task import Task


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return pulsevad.missing()


def task(folder: Path) -> Task:
    """Return the quantized model's search."""
    return pulsevad.search(folder, "pulsevad_2.1k_int8.onnx")
