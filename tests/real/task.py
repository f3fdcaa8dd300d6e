"""What a real job is: models, data, and a score that owes nothing to ortune's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

Run: TypeAlias = Callable[..., dict[str, NDArray[Any]]]
"""``run(**inputs)`` of the only model."""

Runs: TypeAlias = Mapping[str, Run]
"""``runs["decoder"](**inputs)`` of several, by the file's stem."""


@dataclass(frozen=True)
class Task:
    """A search and the score that judges its result from outside.

    Attributes:
        models: Original files; several are one job.
        budget: As on the command line.
        score: Gets a Run (one model) or Runs; higher is better.
        allowed: How much of the original's score may be lost.
        data: Labelled samples; None with an evaluate function.
        calibration: Samples for calibration only.
        evaluate: ``module:function``.
        on: Backends of the short search.
        time: Of the short search: enough to score all samples, as what was judged on a part of
            them may score otherwise on all.
    """

    models: tuple[Path, ...]
    budget: str
    score: Callable[[Any], float]
    allowed: float = 0.01
    data: Path | None = None
    calibration: Path | None = None
    evaluate: str | None = None
    on: str = "cpu(threads=1)"
    time: str = "5s"


def installed(name: str, relative: str) -> Path:
    """Return the path of a file that a distribution installed."""
    return Path(str(distribution(name).locate_file(relative)))


def missing(requirements: tuple[str, ...]) -> str | None:
    """Return the pip line for what is not installed, or None."""
    absent = []
    for requirement in requirements:
        try:
            distribution(requirement.partition("==")[0])
        except PackageNotFoundError:
            absent.append(requirement)
    return f"pip install --no-deps {' '.join(absent)}" if absent else None
