"""A search that begins at a PyTorch module: its export first, its own speed at the end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.errors import summarize_error
from ortune.core.event import Note, Sink
from ortune.core.step import Recipe
from ortune.core.trial import BESIDE, Plan, Proposal
from ortune.measurement.process import WorkerFailed
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts

_PATIENCE_S = 300.0
"""That a request to a module may take: the first run compiles."""
_SECONDS = 4.0
"""Of timing that a row gets."""


def make_rows(source: str, weights: Path, threads: int) -> tuple[Backend, Backend]:
    """Return a module as backends, eager and compiled; what was saved whole has its weights."""
    is_saved = Path(source).suffix in (".pt", ".pth", ".ts", ".jit", ".pt2")
    eager = Torch(
        threads=threads,
        source=str(Path(source).absolute()) if Path(source).exists() else source,
        weights="" if is_saved else str(weights),
    )
    return eager, replace(eager, compile=True)


def compare_module(context: Context, rows: tuple[Backend, ...], sink: Sink) -> None:
    """Time the module beside the original and score it: rows of the table, and no more.

    Whatever goes wrong with a row is what the row says.
    """
    patient = replace(
        context, deadlines=replace(context.deadlines, seconds={}), timeout_s=_PATIENCE_S
    )
    with ExitStack() as stack:
        attempts = Attempts(patient, _SECONDS, sink, stack)
        for backend in rows:
            proposal = Proposal(
                Plan(Recipe("PyTorch"), backend), BESIDE, "what the model was exported from"
            )
            try:
                attempts.try_plan(proposal, always_score=True)
            except WorkerFailed as error:
                sink(
                    Note(
                        f"PyTorch was not timed: {summarize_error(error.failure.reason)}",
                        warning=True,
                    )
                )
                return
            except KeyboardInterrupt:
                sink(Note("interrupted: PyTorch was not timed", warning=True))
                return
