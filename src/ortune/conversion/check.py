"""Whether a converted file is what was ordered: its types, loading, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from ortune.analysis.verification.verify import verify
from ortune.conversion import precisions
from ortune.conversion.requests import Convert
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, OrtuneError
from ortune.core.event import Note
from ortune.core.facts import Facts
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.measurement.capabilities import capabilities
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.model.lint import gpu

SAMPLES = 64
"""Compared after a conversion; `ortune verify` takes all."""


def check(
    asked: Convert, path: Path, feeds: Feeds | None, folder: Path
) -> tuple[Mapping[str, int], list[dict[str, object]]]:
    """Check types, loading and answers of a converted file; return its weights and scores.

    Raises:
        OrtuneError: It is not what was ordered, or is for the CPU and does not run there.
    """

    found = facts(file.load(path))
    check_types(asked, found)
    check_target(asked, path)
    backend = precisions.checker(asked.precision, asked.custom_ops)
    where = "the CPU" if backend.name() == "cpu" else backend.name()
    scores: list[dict[str, object]] = []
    try:
        if lacking := capabilities(backend).missing:
            raise BackendMissing(lacking, fix=f"install {backend.name()}")
        _loads(path, folder, backend)
        scores = _compared(Path(asked.model), path, feeds, backend)
    except OrtuneError as error:
        if asked.target == "cpu" and backend.name() == "cpu":
            raise
        asked.sink(Note(f"not checked on {where}: {error.what}", warning=True))
    if any(score["value"] != score["value"] for score in scores):
        asked.sink(
            Note("the result answers with NaN: the values overflow this precision", warning=True)
        )
    return found.precisions, scores


def check_types(asked: Convert, found: Facts) -> None:
    """Check that the file holds the precision that was ordered.

    Raises:
        BadModel: It does not.
    """
    folded = asked.folds and found.has("Cast") and found.has("Mul")
    wanted = asked.precision
    if wanted is not None and not precisions.holds(wanted, found, folded=folded):
        sizes = found.precisions.items()
        weights = ", ".join(f"{size} bytes of {name}" for name, size in sizes)
        raise BadModel(
            f"the result is not {asked.precision}: it holds {weights or 'no weights'}",
            fix="see `ortune inspect`; another --precision may suit this model",
        )


def check_target(asked: Convert, path: Path) -> None:
    """Check that TensorRT would take the pairs of the file, where it is meant for it.

    Raises:
        BadModel: It would refuse one.
    """
    if asked.precision != "int8" or asked.target == "cpu" or asked.integers != "tensorrt":
        return
    for odd in gpu.tensorrt(file.load(path)):
        raise BadModel(
            f"TensorRT refuses the result: {odd.what} ({', '.join(odd.places)})", fix=odd.action
        )


def _loads(path: Path, folder: Path, backend: Backend) -> None:
    try:
        ask_once(WorkerJob({MAIN: path.resolve()}, backend, {}, (folder / "load").resolve()))
    except WorkerFailed as error:
        where = "the CPU" if backend.name() == "cpu" else backend.name()
        raise BadModel(
            f"the result does not load on {where}: {error.failure.reason}",
            fix="try another --precision or --opt-level; nothing was written",
        ) from None


def _compared(
    model: Path, path: Path, feeds: Feeds | None, backend: Backend
) -> list[dict[str, object]]:
    """Score the result against the source on a few samples; empty when nothing can be run."""

    if feeds is None:
        return []
    stream = Stream(feeds.stream)
    found = verify(model, path, data=lambda: islice(stream, SAMPLES), on=str(backend))
    return [
        {"metric": score.metric, "value": score.value, "samples": score.samples}
        for score in found.scores
    ]
