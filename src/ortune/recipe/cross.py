"""Take samples over a step that changes inputs or outputs, and compare numbers across it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.core.step import Bridge
from ortune.data import feeds
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream, write
from ortune.measurement.process import WorkerFailed
from ortune.recipe import compare


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
    told = [sample for sample, old in zip(new, runs, strict=True) if old]
    try:
        wanted = list(_wanted(bridge, before, [old for old in runs if old], folder, custom_ops))
    except WorkerFailed as error:
        return float("nan"), f"the model before it does not run: {error.failure.reason}"
    try:
        found = list(_answers(after, new, folder, "after", custom_ops))
    except WorkerFailed as error:
        return float("nan"), error.failure.reason
    answered = [answer for answer, old in zip(found, runs, strict=True) if old]
    if not told:
        return float("nan"), None
    decibels = compare.decibels(wanted, answered)
    if decibels >= bridge.decibels:
        return decibels, None
    return decibels, f"outputs differ: {decibels:.1f} dB, {bridge.decibels:.0f} wanted"


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
    model: Path,
    samples: Sequence[Tensors],
    folder: Path,
    label: str,
    custom_ops: tuple[str, ...],
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
    found = compare.reference(model, inputs, every, folder, name, custom_ops=custom_ops)
    return list(Stream(found.outputs))
