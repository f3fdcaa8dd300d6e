"""Feeds: samples of a model's inputs in a stream file, with digests, labels and groups.

A file (or line, or dict) is split into samples when all its inputs share the batch dimension,
else it is one sample. A sample takes one row where the model's batch is dynamic or 1, and N rows
where it is fixed to N.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from ortune.core import preprocess
from ortune.core.errors import BadData
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.data import batches, checks, sources, stream
from ortune.data import labels as label_files
from ortune.data.arrays import NamedArrays
from ortune.data.batches import Unit
from ortune.data.classes import read_alphabet
from ortune.data.labels import Annotations, NamedLabels
from ortune.data.reading import Reading, read_features
from ortune.data.sentences import Sentences, open_sentences
from ortune.data.sources import Source, SourcePart

PROGRESS_INTERVAL_S = 0.5
"""Between two words on how far the reading is."""


@dataclass(frozen=True)
class Feeds:
    """Samples that were checked against a model's inputs.

    Attributes:
        digests: Of each sample's tensors; equal samples, equal digests.
        labels: One a sample, as plain data: a number, a text, or nested lists of them.
        groups: One a sample; samples of one group are not independent.
        source: Where they come from.
        synthetic: Made up.
        notes: What a person should know: conversions, defaults.
        places: Of each sample that was read: its file, line or row.
    """

    stream: Path
    count: int
    digests: tuple[str, ...]
    labels: tuple[Any, ...] | None = None
    groups: tuple[str, ...] | None = None
    source: str = ""
    synthetic: bool = False
    notes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def load_feeds(
    source: Source | SourcePart,
    inputs: Sequence[TensorSpec],
    out: Path,
    *,
    labels: str | Path | Sequence[Any] | None = None,
    batch: int = 0,
    pictures: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    classes: Sequence[str] = (),
    steps: Callable[[Iterable[NamedArrays]], Iterator[NamedArrays]] | None = None,
    settings: HubFolder | None = None,
    sentences: Sentences | None = None,
    sink: Sink = ignore_event,
) -> Feeds:
    """Read a source into ``OUT/feeds.stream``, one sample at a time, checking each.

    Args:
        source: A folder, a file, ``FILE.py:NAME``, a function that yields dicts, or a part of
            a folder or file.
        out: Folder for the stream file.
        labels: A .npy or .csv file, or a sequence; in the samples' order. Those of a .csv file
            with the samples' file names go by these, as those of a COCO .json file do.
        batch: Samples that will be stacked into one run; checked here, not stacked.
        pictures: Keys of ``preprocess.toml`` in the place of those beside the images.
        optional: Inputs that samples may leave out, and that no batch is found by.
        classes: The model's own, in the order of their numbers: folders are called by them.
        steps: Makes samples of files, lines and dicts in the place of the rule of the batch.
        settings: The model's folder: how texts and pictures become its inputs, and its classes.
        sentences: What tokenizes, of a caller that asks it for the texts; without it as `settings`
            say.

    Raises:
        BadData: The source, a sample or the labels cannot be used; two lines say why.
    """
    checks.check_tensor_inputs(inputs)
    batches.check_batch(batch, inputs)
    shown = sources.describe_source(source)
    reader = _SampleReader(inputs, labels, sink, optional, splits=steps is None)
    path = out / "feeds.stream"
    sentences = sentences or open_sentences(settings, inputs, reader.add_note)
    if settings is not None:
        classes = classes or settings.classes
        folder = source.folder if isinstance(source, SourcePart) else source
        beside = isinstance(folder, (str, Path)) and (Path(folder) / preprocess.SETTINGS).is_file()
        if not pictures:  # a file beside the pictures goes before the model's folder
            pictures = None if beside else settings.picture_keys
    reading = Reading(
        inputs, reader.add_note, pictures, optional, classes, sentences, read_features(settings)
    )
    if isinstance(source, SourcePart):
        blocks = sources.open_part(source, reading)
    else:
        blocks = sources.open_source(source, reading)
    samples = reader.read_samples(steps(blocks) if steps else blocks, shown)
    count = stream.write_stream(path, samples)
    kept = tuple(reader.labels) or None
    if (alphabet := read_alphabet(settings)) is not None and kept is not None:
        texts = [label for label in kept if isinstance(label, str)]  # numbers are those of folders
        kept = tuple(map(alphabet.number_text, texts)) or None
    return Feeds(
        path,
        count,
        tuple(reader.digests),
        kept,
        tuple(reader.groups) or None,
        shown,
        notes=tuple(reader.notes),
        places=tuple(reader.places),
    )


def digest_sample(sample: Tensors) -> str:
    """Return 16 hex digits over names, dtypes, shapes and values."""
    hasher = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        text = array.dtype.kind in "US"
        head = json.dumps([name, "str" if text else array.dtype.name, array.shape])
        hasher.update(head.encode())
        hasher.update(json.dumps(array.astype(str).tolist()).encode() if text else array.tobytes())
    return hasher.hexdigest()[:16]


class _SampleReader:
    """What is learned while the samples pass by."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        labels: str | Path | Sequence[Any] | None,
        sink: Sink,
        optional: Collection[str],
        *,
        splits: bool,
    ) -> None:
        self._sink, self._reported_at = sink, monotonic()
        self.digests: list[str] = []
        self.places: list[str] = []
        self.labels: list[Any] = []
        self.groups: list[str] = []
        self.notes: dict[str, None] = {}
        self._inputs, self._optional = inputs, optional
        shared = [spec for spec in inputs if spec.name not in optional]
        self._rows = batches.count_sample_rows(shared) if splits else None
        self._labels: list[Any] | None = None
        self._groups: list[str] | None = None
        self._annotations: Annotations | None = None
        self._named: NamedLabels | None = None
        if isinstance(labels, (str, Path)):
            content, self._groups = label_files.read_label_file(Path(labels))
            if isinstance(content, Annotations):
                self._annotations = content
            elif isinstance(content, NamedLabels):
                self._named = content
            else:
                self._labels = content
        elif labels is not None:
            self._labels = [label_files.to_plain_label(label) for label in labels]

    def add_note(self, text: str) -> None:
        """Keep a note once."""
        self.notes[text] = None

    def read_samples(self, blocks: Iterable[NamedArrays], shown: str) -> Iterator[Tensors]:
        """Yield the checked samples. Raises BadData: one cannot be used, or there is none."""
        rows = self._rows
        for unit in batches.stack_rows(self._split_blocks(blocks, rows), rows or 1, self.add_note):
            specs = [spec for spec in self._inputs if spec.name in unit.tensors]
            sample = {
                spec.name: checks.cast_to_input(
                    unit.where, unit.tensors[spec.name], spec, self.add_note
                )
                for spec in specs
            }
            self.digests.append(digest_sample(sample))
            self.places.append(unit.where)
            for name, value, kept in (
                ("label", unit.label, self.labels),
                ("group", unit.group, self.groups),
            ):
                if value is not None:
                    kept.append(value)
                if self._labels is None and len(kept) not in (0, len(self.digests)):
                    raise BadData(
                        f"{unit.where}: some samples have a {name}, others have none",
                        fix=f"give every sample a {name}",
                    )
            if monotonic() - self._reported_at > PROGRESS_INTERVAL_S:
                self._reported_at = monotonic()
                self._sink(Progress("reading samples", len(self.digests)))
            yield sample
        if not self.digests:
            few = f"fewer rows than the {rows} that the model takes at once"
            raise BadData(
                f"no samples in {shown}" + (f": {few}" if self.notes and (rows or 0) > 1 else ""),
                fix="give at least one sample",
            )

    def _split_blocks(self, blocks: Iterable[NamedArrays], rows: int | None) -> Iterator[Unit]:
        """Yield rows and whole blocks, with labels and groups from the file where one is given."""
        at = 0
        for block in blocks:
            splits, optional = rows is not None, self._optional
            for unit in batches.split_block(block, self._inputs, splits=splits, optional=optional):
                yield self._attach_label(unit, at)
                at += 1
        if self._named is not None and at:
            self._named.require_all_taken()
        if self._labels is not None and at and len(self._labels) != at:
            raise BadData(
                f"wrong number of labels: Got {len(self._labels)}, expected {at}, one a sample",
                fix="give the labels in the samples' order, files by name",
            )

    def _attach_label(self, unit: Unit, at: int) -> Unit:
        if self._annotations is not None:
            return replace(unit, label=self._annotations.find_label(unit.where))
        named = self._named
        if named is not None and not (at or named.certain or named.has_row(unit.where)):
            self._labels, self._groups, self._named = named.labels, named.groups, None
        if self._labels is None and self._named is None:
            return unit
        if unit.label is not None:
            self.add_note("labels in the samples are replaced by those given apart")
        if self._named is not None:
            label, named_group = self._named.take(unit.where)
            return replace(unit, label=label, group=named_group or unit.group)
        assert self._labels is not None
        label = self._labels[at] if at < len(self._labels) else None
        groups = self._groups
        group = groups[at] if groups is not None and at < len(groups) else unit.group
        return replace(unit, label=label, group=group)
