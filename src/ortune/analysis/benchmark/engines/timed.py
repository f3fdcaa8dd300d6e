"""Rows of whole engines, timed in turns and told as every bench tells its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.analysis.benchmark import interleave as rows
from ortune.analysis.benchmark.interleave import TimedRow, contest
from ortune.analysis.benchmark.judged import result
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.result import BenchResult
from ortune.engine import archive
from ortune.measurement.machine import noise
from ortune.measurement.machine.energy import energy
from ortune.model.io import file


def timed(
    raced: Sequence[Sequence[TimedRow]],
    told: Sequence[Sequence[tuple[TimedRow, Mapping[str, Any]]]],
    asked: Bench,
    root: Path,
) -> BenchResult:
    """Time groups of rows and return what they come to.

    Args:
        raced: The rows of a group take turns.
        told: The same rows by what they are compared with: the first of a group is its measure.
            Beside each is what it tells in the place of what every row does.
        asked: Seconds and sets.
        root: Folder for the files of workers.

    Raises:
        BadModel: The first row of a group does not run.
    """
    meters = energy()
    before = noise.snapshot()
    contest(raced, root, asked.seconds, meters, asked.sets, asked.sink)
    record = noise.between(before, noise.snapshot())
    models = dict.fromkeys(row.contestant.model for group in raced for row in group)
    known = {path: _identity(path) for path in models}
    made = [
        {**rows.row(one, known[one.contestant.model][0], meters, size), **more}
        for group in told
        for one, more in group
        for size in (known[one.contestant.model][1],)
    ]
    return result([[one for one, _ in group] for group in told], made, record)


def _identity(path: Path) -> tuple[str, int]:
    """Return a file's digest and size, weights beside a model included."""
    if not archive.is_bundle(path):
        return file.digest(path), file.size(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32], path.stat().st_size
