"""Two model files side by side."""

from __future__ import annotations

from ortune.analysis.inspection.requests import DiffRequest
from ortune.core.event import Progress
from ortune.core.request import verb
from ortune.model.diff import compare
from ortune.model.diff.result import Diff
from ortune.model.io import file


def run(asked: DiffRequest) -> Diff:
    """Read both files and compare them."""
    asked.sink(Progress("reading the models", 0, 4))
    a, b = (file.load(one, newer_opset=True) for one in (asked.a, asked.b))
    return compare.diff(a, b, asked.sink)


diff = verb(DiffRequest, run)
