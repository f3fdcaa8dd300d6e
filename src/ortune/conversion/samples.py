"""What a conversion calibrates on and is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.calibration import reuse
from ortune.calibration.ranges_file import SavedRanges
from ortune.conversion.requests import ConversionRequest
from ortune.core.errors import BadData, OrtuneError, gist
from ortune.core.event import Note
from ortune.data import augment, given
from ortune.data.feeds import Feeds
from ortune.measurement.process import WorkerFailed, ask_once, lone
from ortune.measurement.rolled import Sequenced
from ortune.model.analysis.facts import facts
from ortune.model.io import file

_MADE_UP = 4
"""Samples to compare numbers on when none are given."""


@dataclass(frozen=True)
class ConversionData:
    """Samples and ranges.

    Attributes:
        feeds: Altered copies included; made-up samples only compare; None when none of those run.
        known: Ranges of an earlier calibration.
    """

    feeds: Feeds | None
    known: SavedRanges | None


def read(asked: ConversionRequest, model: Path, folder: Path) -> ConversionData:
    """Read the ranges and the samples of a request, or make samples up.

    Raises:
        OrtuneError: They cannot be used with the model, or made-up samples are to be altered.
    """
    known = None
    if asked.ranges_from is not None:
        known, notes = reuse.load(Path(asked.ranges_from), model)
        for text in notes:
            asked.sink(Note(text, warning=True))
    return ConversionData(_augmented(asked, _samples(asked, model, folder), folder), known)


def _samples(asked: ConversionRequest, model: Path, folder: Path) -> Feeds | None:
    shapes, ranges = asked.shapes, asked.ranges
    known = facts(file.load(model))
    if asked.sequence and asked.data is not None:
        cpu, digest = Cpu(custom_ops=asked.custom_ops), file.digest(model)
        rolled = Sequenced(model, digest, known, asked, cpu, shapes, folder)
        found = rolled.load(asked.data, folder, sink=asked.sink)
        for text in found.notes:
            asked.sink(Note(text))
        return found
    try:
        found = given.samples(
            asked.data, known.inputs, folder, shapes=shapes, ranges=ranges, count=_MADE_UP
        )
        if found.synthetic:
            _try(model, found, folder, asked.custom_ops)
    except OrtuneError as error:
        if asked.data is not None or shapes or ranges:
            raise
        asked.sink(Note(f"numbers are not compared: {gist(error.what)}", warning=True))
        return None
    for text in found.notes:
        asked.sink(Note(text))
    return found


def _augmented(asked: ConversionRequest, feeds: Feeds | None, folder: Path) -> Feeds | None:
    if asked.augment is None:
        return feeds
    ways = augment.read(asked.augment)
    if feeds is None or feeds.synthetic:
        raise BadData("--augment alters samples, and none are given", fix="give --data too")
    found = augment.augment(feeds, range(feeds.count), ways, folder)
    for text in found.notes:
        asked.sink(Note(text))
    return found


def _try(model: Path, found: Feeds, folder: Path, custom_ops: tuple[str, ...]) -> None:
    """Run the model once on made-up samples.

    Raises:
        BadData: It does not take them.
    """
    job = lone(model, Cpu(custom_ops=custom_ops), found.stream, folder, "try")
    try:
        ask_once(job, ("first", {}))
    except WorkerFailed as error:
        raise BadData(
            f"{model.name} does not run on made-up samples: {error.failure.reason}",
            fix="give --data, or --shape and --range of its inputs",
        ) from None
