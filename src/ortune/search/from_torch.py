"""A search that begins at a PyTorch module: its answers first, its own speed at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.torch.module import ModuleSource
from ortune.backends.torch import Torch
from ortune.core import regular_file
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError, summarize_error
from ortune.core.event import Note, Progress, Sink
from ortune.core.hub import HubFolder
from ortune.core.plugins import codec
from ortune.core.step import Recipe
from ortune.core.trial import BESIDE, Plan, Proposal
from ortune.data.feeds import Feeds
from ortune.data.sequences.generation import ANSWERS
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, translate_failures, worker_folder
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


_TOKENS = 32
"""Of an answer, at most."""
_TIMEOUT_S = 1800.0
_FUNCTION = '''"""Score an encoder and its decoder by the answers that PyTorch gave ({key})."""

from pathlib import Path

from ortune.data.sequences.generation import score_answers


def evaluate(run):
    return score_answers(run, Path(__file__).parent)


evaluate.bounds = (0, 1)
'''


def write_answers(
    parts: Sequence[ModuleSource],
    settings: HubFolder,
    feeds: Feeds,
    work: Path,
    *,
    memory_limit: int | None,
    sink: Sink,
) -> str:
    """Have PyTorch answer every sample; return the function that scores a plan by the answers.

    Args:
        parts: The encoder and the decoder of a folder.
        settings: Of the folder: where an answer begins and ends.
        feeds: Samples of the encoder.
        work: Folder for answers and function; answers that are there to the same samples stay.
        memory_limit: Bytes that PyTorch may take.
        sink: Receives how far it is.

    Raises:
        BadModel: PyTorch does not answer.
    """
    exports = [
        regular_file.read_text(Path(part.weights).with_name("export.json")) for part in parts
    ]
    key = codec.digest([feeds.digests, _TOKENS, *(json.loads(text)["key"] for text in exports)])
    answers, written_for = work / ANSWERS, None
    with suppress(OSError, ValueError, LookupError, TypeError, OrtuneError):  # lacking or broken
        written_for = str(json.loads(regular_file.read_text(answers))["key"])
    if written_for != key:
        sink(Progress("writing answers by PyTorch"))
        job = WorkerJob({}, Cpu(), {}, worker_folder(work / "workers", "answers"))
        try:
            with (
                translate_failures("PyTorch does not answer", ""),
                Worker(job, timeout_s=_TIMEOUT_S, memory_limit=memory_limit, sink=sink) as worker,
            ):
                written = worker.ask(
                    "write_answers",
                    parts=[codec.encode(part) for part in parts],
                    feeds=str(feeds.stream),
                    start=settings.start,
                    ends=sorted(settings.ends),
                    count=_TOKENS,
                )
        finally:
            shutil.rmtree(work / "workers", ignore_errors=True)
        kept = {"key": key, "start": settings.start, "groups": feeds.groups}
        write_text(answers, json.dumps({**kept, "tokens": written["answers"]}))
    write_text(work / "evaluate.py", _FUNCTION.format(key=key))
    return f"{work / 'evaluate.py'}:evaluate"
