"""Scores against the float32 model, the same for whoever made a file; kept by what they are of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import ortune as ot
from benchmarks.peers.cases import Case
from benchmarks.peers.environments import CACHE
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.trial import Verdict
from ortune.graph.io import file


@dataclass(frozen=True)
class Scored:
    """What a file's answers are worth.

    Attributes:
        values: Metric -> score.
        holds: The budgets that it is not proved to fail.
        error: Why it cannot be scored.
    """

    values: dict[str, float] = field(default_factory=dict)
    holds: list[str] = field(default_factory=list)
    error: str = ""


def scored(case: Case, folder: Path, path: Path, backend: Backend) -> Scored:
    """Score a file on the samples for judging; a budget counts only if the one before it holds."""
    known = CACHE / "scores" / f"{_key(case, folder, path, backend)}.json"
    if known.is_file():
        return Scored(**json.loads(known.read_text()))
    values: dict[str, float] = {}
    holds, error = [], ""
    for budget in case.budgets:
        try:
            found = ot.verify(
                folder / "model.onnx",
                path,
                data=None if case.evaluate else folder / "data",
                evaluate=case.evaluate,
                budget=budget,
                on=str(backend),
            )
        except OrtuneError as failure:
            error = failure.what
            break
        values |= {score.metric: score.value for score in found.scores}
        if found.verdict is Verdict.FAILS:
            break
        holds.append(budget)
    made = Scored(values, holds, error)
    known.parent.mkdir(exist_ok=True)
    known.write_text(json.dumps(asdict(made)))
    return made


def _key(case: Case, folder: Path, path: Path, backend: Backend) -> str:
    digest = hashlib.sha256(f"{case.budgets} {case.evaluate} {backend}".encode())
    for model in (folder / "model.onnx", path):
        digest.update(str(file.compute_digest(model)).encode())
    for sample in sorted((folder / "data").iterdir()):
        digest.update(sample.read_bytes())
    return digest.hexdigest()[:16]
