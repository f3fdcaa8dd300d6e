"""Do two model files compute the same? Asked of a worker, on real or made-up samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.core.step import Bridge
from ortune.data import feeds
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream, write
from ortune.graph.io import file
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once, lone, outputs
from ortune.metrics.snr import Snr

EXACT_DB = 90.0
"""A rewrite that only changes the order of float32 operations stays well above this."""
_ORACLE = Cpu(level="disabled")
_COPIES = 2
_SPARE = 256 << 20
"""Bytes for the runtime itself and for what lies between nodes."""


@dataclass(frozen=True)
class ExpectedOutputs:
    """The outputs that every step of a build must keep.

    Attributes:
        indices: The few that are run.
        outputs: Stream of the source model's outputs on them.
    """

    stream: Path
    indices: tuple[int, ...]
    outputs: Path
    custom_ops: tuple[str, ...] = ()


def reference(
    model: Path,
    stream: Path,
    indices: Sequence[int],
    folder: Path,
    name: str = "expected",
    *,
    custom_ops: tuple[str, ...] = (),
) -> ExpectedOutputs:
    """Run the source model and keep its outputs, in ``FOLDER/NAME.stream``.

    Raises:
        WorkerFailed: The source model does not run on these samples.
    """
    path = folder.resolve() / f"{name}.stream"
    outputs(job(model, stream, folder, custom_ops), indices, path)
    return ExpectedOutputs(stream, tuple(indices), path, custom_ops)


def lacks(model: Path, available: int | None = None) -> str | None:
    """Say that memory does not suffice to run a model beside a person's other work; else None.

    Weights count twice: the runtime lays those of products out anew, and may still hold the first
    copy. Both models are never open at the same time.

    Args:
        available: Bytes; by default what the machine has left now.
    """
    left = psutil.virtual_memory().available if available is None else available
    needed = _COPIES * file.size(model) + _SPARE
    if needed <= left:
        return None
    return (
        f"numbers are not compared: running the model may take {needed / 1e9:.1f} GB, "
        f"and {left / 1e9:.1f} GB are free"
    )


def difference(model: Path, wanted: ExpectedOutputs, folder: Path) -> str | None:
    """Return why a rewritten model differs from the reference, or None when it does not."""
    command = {
        "indices": list(wanted.indices),
        "metrics": [Snr()],
        "expected": str(wanted.outputs),
    }
    try:
        asked = job(model, wanted.stream, folder, wanted.custom_ops)
        answer = ask_once(asked, ("score", command))[0]
    except WorkerFailed as error:
        return error.failure.reason
    snr = Snr().aggregate(np.asarray(answer["records"][0], np.float64))
    return None if snr >= EXACT_DB else f"outputs differ: {snr:.1f} dB, {EXACT_DB:.0f} wanted"


def decibels(wanted: Sequence[Tensors], found: Sequence[Tensors]) -> float:
    """Return the signal-to-noise ratio of answers."""
    return Snr().aggregate(Snr().records(wanted, found, None))


def job(model: Path, stream: Path, folder: Path, custom_ops: tuple[str, ...]) -> WorkerJob:
    """Return the job of running a model on samples as it is written, on the CPU."""
    return lone(model, replace(_ORACLE, custom_ops=custom_ops), stream, folder, "compare")


def carried(bridge: Bridge, given: Feeds, path: Path) -> Feeds:
    """Return the samples as the new model takes them, one for one, written to `path`.

    Raises:
        BadData: A sample does not cross.
    """
    digests: list[str] = []

    def crossed() -> Iterator[Tensors]:
        for sample in Stream(given.stream):
            (first,) = islice(bridge.samples(sample), 1)
            digests.append(feeds.digest(first))
            yield first

    write(path, crossed())
    return replace(given, stream=path, digests=tuple(digests))


def differs(
    bridge: Bridge,
    before: Path,
    after: Path,
    given: Feeds,
    indices: Sequence[int],
    folder: Path,
    custom_ops: tuple[str, ...] = (),
) -> tuple[float, str | None]:
    """Compare a model with the one it was made from, across the step.

    Args:
        before: The model that takes the samples `given`.

    Returns:
        Decibels, and why the models differ, or None when they do not. NaN decibels where only
        running could be asked.
    """
    stream = Stream(given.stream)
    new = [sample for index in indices for sample in bridge.samples(stream[index])]
    runs = [list(bridge.runs(sample)) for sample in new]
    try:
        wanted = list(_wanted(bridge, before, [old for old in runs if old], folder, custom_ops))
    except WorkerFailed as error:
        return float("nan"), f"the model before it does not run: {error.failure.reason}"
    try:
        found = list(_answers(after, new, folder, "after", custom_ops))
    except WorkerFailed as error:
        return float("nan"), error.failure.reason
    answered = [answer for answer, old in zip(found, runs, strict=True) if old]
    if not wanted:
        return float("nan"), None
    snr = decibels(wanted, answered)
    if snr >= bridge.decibels:
        return snr, None
    return snr, f"outputs differ: {snr:.1f} dB, {bridge.decibels:.0f} wanted"


def _wanted(
    bridge: Bridge,
    before: Path,
    runs: Sequence[Sequence[Tensors]],
    folder: Path,
    custom_ops: tuple[str, ...],
) -> Iterator[Tensors]:
    """Yield what the new model must answer, a sample."""
    flat = [sample for old in runs for sample in old]
    if not flat:
        return
    answers = iter(_answers(before, flat, folder, "before", custom_ops))
    for old in runs:
        yield bridge.joined(list(islice(answers, len(old))))


def _answers(
    model: Path, samples: Sequence[Tensors], folder: Path, label: str, custom_ops: tuple[str, ...]
) -> list[Tensors]:
    """Run a model on samples.

    Raises:
        WorkerFailed: It does not run on them.
        BadData: There are none.
    """
    if not samples:
        raise BadData("there are no samples to compare on", fix="give some with --data")
    inputs = folder / f"{label}.stream"
    write(inputs, samples)
    every, name = range(len(samples)), f"{label}-outputs"
    found = reference(model, inputs, every, folder, name, custom_ops=custom_ops)
    return list(Stream(found.outputs))
