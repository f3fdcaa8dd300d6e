"""What the models are fed: the user's samples, made-up ones, or calls that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortune.core import atomic_write, hub
from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadData
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.workload import spread_indices
from ortune.data import augment, feeds, split, synthetic
from ortune.data.classes import read_classes
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.graph.io import file
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker
from ortune.measurement.rolled import StatefulModel
from ortune.quantizers.calibration.ranges_file import SavedRanges
from ortune.search.experiment.experiment import Experiment
from ortune.search.recipe.build import Material

_RECORDED = 64  # recorded calls that are used for calibration, spread over all
_SEARCH_SHARE = 0.6
CALIBRATION = "calibration"  # the part that quantizers observe

Division = Mapping[str, tuple[int, ...]]  # part of the data -> indices of samples
GivenRanges = tuple[SavedRanges, tuple[str, ...]]
"""Ranges of an earlier calibration, and what a person should know of them."""


@dataclass(frozen=True)
class Feeding:
    """Samples, and what builds may use of them.

    Attributes:
        streams: Model name -> stream that timing runs on.
        materials: Model name -> what builds may use.
        feeds: The samples that are divided into parts: those of the user, or what a generator
            yielded, without inputs; None with an evaluate function that returns a list.
        calibration: Samples to calibrate with, given apart.
        ends: Model name -> for every yield of a generator, how many calls came until then.
    """

    streams: Mapping[str, Path]
    materials: Mapping[str, Material]
    digest: str
    feeds: Feeds | None = None
    calibration: Feeds | None = None
    ends: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def move_to(self, folder: Path) -> Feeding:
        """Move the samples' folder to its place and return the same samples there."""
        draft = min((p.parent for p in self.streams.values()), key=lambda p: len(p.parts))
        atomic_write.replace_path(draft, folder)
        materials = {}
        for name, material in self.materials.items():
            if material.feeds is not None:
                stream = folder / material.feeds.stream.relative_to(draft)
                material = replace(material, feeds=replace(material.feeds, stream=stream))
            materials[name] = material
        streams = {name: folder / p.relative_to(draft) for name, p in self.streams.items()}
        return replace(self, streams=streams, materials=materials)

    def with_calibration_part(self, parts: Division) -> Feeding:
        """Return the same samples; quantizers observe the part that is for calibration."""
        if CALIBRATION not in parts:
            return self
        materials = {
            name: replace(material, calibration=self._calibration_calls(name, parts[CALIBRATION]))
            for name, material in self.materials.items()
        }
        return replace(self, materials=materials)

    def _calibration_calls(self, name: str, part: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part's samples, or the calls that a model got on them."""
        if name not in self.ends:
            return part
        ends = [0, *self.ends[name]]
        calls = [call for at in part for call in range(ends[at], ends[at + 1])]
        candidates = calls or list(range(ends[-1]))
        return tuple(candidates[i] for i in spread_indices(len(candidates), _RECORDED))

    def with_ranges(
        self, ranges: GivenRanges | None, augmentations: Sequence[Augmentation], sink: Sink
    ) -> Feeding:
        """Return the same samples with the ranges that are given; how they are altered counts."""
        material = self.materials.get(MAIN)
        if material is None or not (ranges or augmentations):
            return self
        digest_parts: list[str] = []
        if ranges:
            saved_ranges, notes = ranges
            material = replace(material, saved_ranges=saved_ranges)
            digest_parts.append(saved_ranges.digest)
            for text in notes:
                sink(Note(text, warning=True))
        if material.feeds is not None:
            digest_parts += map(str, augmentations)
        digest = codec.digest([self.digest, *digest_parts])
        return replace(self, materials={MAIN: material}, digest=digest)

    def with_augmentations(
        self, augmentations: Sequence[Augmentation], folder: Path, sink: Sink
    ) -> Feeding:
        """Return the same samples; altered copies of the calibration's are observed too.

        Raises:
            BadData: The samples cannot be altered.
        """
        material = self.materials.get(MAIN)
        if not augmentations or material is None or material.feeds is None:
            return self
        augmented = augment.augment_samples(
            material.feeds, material.calibration, augmentations, folder
        )
        for text in augmented.notes:
            sink(Note(text))
        material = replace(material, feeds=augmented, calibration=tuple(range(augmented.count)))
        return replace(self, materials={MAIN: material})


def load_samples(
    experiment: Experiment, facts: Facts, folder: Path, sink: Sink, earlier: Path
) -> Feeding:
    """Read the user's samples, or make some up when there are none.

    Args:
        folder: For the stream files.
        earlier: Where an earlier run of this job has its own.

    Raises:
        BadData: They cannot be used with the model, or calibration and evaluation overlap.
    """
    inputs, batch = facts.inputs, experiment.workload.batch
    synthetic.require_input_names(inputs, experiment.shapes, experiment.ranges)
    load = _make_loader(experiment, facts, folder.parent)
    if experiment.data is None:
        sample_feeds = synthetic.generate_feeds(
            inputs, folder, shapes=experiment.shapes, ranges=experiment.ranges
        )
        sink(Note("no data: samples are made up, and only exact plans are tried", warning=True))
    else:
        at = (folder, earlier)
        sample_feeds = load(experiment.data, *at, labels=experiment.labels, batch=batch, sink=sink)
    calibration_feeds = None
    if experiment.calibration is not None:
        at = (folder / CALIBRATION, earlier / CALIBRATION)
        calibration_feeds = load(experiment.calibration, *at, sink=sink)
        split.require_disjoint(sample_feeds, calibration_feeds)
    for text in sample_feeds.notes:
        sink(Note(text))
    labels = None if sample_feeds.labels is None else [str(label) for label in sample_feeds.labels]
    content = [
        sample_feeds.digests,
        labels,
        sample_feeds.groups,
        calibration_feeds.digests if calibration_feeds else None,
    ]
    return Feeding(
        {MAIN: sample_feeds.stream},
        {
            MAIN: Material(
                calibration_feeds or sample_feeds, (), custom_ops=experiment.baseline.custom_ops
            )
        },
        codec.digest([content, experiment.digest_code()]),
        sample_feeds,
        calibration_feeds,
    )


def _make_loader(experiment: Experiment, facts: Facts, root: Path) -> Callable[..., Feeds]:
    """Return what reads a source into a folder, beside that of an earlier run."""
    if not experiment.sequence:
        classes = read_classes(facts.metadata)
        settings = hub.find_folder(experiment.models[MAIN])
        return lambda source, out, _, **options: feeds.load_feeds(
            source, facts.inputs, out, classes=classes, settings=settings, **options
        )
    model = experiment.models[MAIN]
    sequence_source = StatefulModel(
        model=model,
        digest=file.compute_digest(model),
        facts=facts,
        sequence=experiment.sequence,
        state=experiment.state,
        backend=experiment.baseline,
        shapes=experiment.shapes,
        work=root,
    )
    return lambda source, out, earlier, **options: replace(sequence_source, earlier=earlier).load(
        source, out, **options
    )


def record_calls(experiment: Experiment, worker: Worker, folder: Path) -> Feeding:
    """Record the calls that the evaluate function makes on the loaded baseline.

    Raises:
        BadData: It returns nothing, or never runs one of the models.
    """
    models = experiment.models
    streams = {name: folder / f"{name or 'model'}.stream" for name in models}
    folder.mkdir(parents=True, exist_ok=True)
    answer = worker.ask(
        "evaluate",
        function=experiment.evaluate,
        record={name: str(path.resolve()) for name, path in streams.items()},
        timeout_s=max(300.0, 2 * experiment.time),
    )
    records = answer["records"][0]
    if not records:
        raise BadData(
            f"{experiment.evaluate} returned no records", fix="return one record a sample"
        )
    idle = [models[name].stem for name, calls in answer["calls"].items() if not calls]
    if idle:
        raise BadData(
            f"{experiment.evaluate} never ran {', '.join(idle)}",
            fix="call every model that is given",
        )
    materials = {}
    for name, path in streams.items():
        count = len(Stream(path))
        fed = Feeds(path, count, (), None, None, experiment.evaluate)
        chosen = spread_indices(max(1, round(count * _SEARCH_SHARE)), _RECORDED)
        materials[name] = Material(fed, chosen, custom_ops=experiment.baseline.custom_ops)
    digest = codec.digest([len(records), experiment.digest_code()])
    return Feeding(streams, materials, digest, ends=answer.get("ends", {}))


def record_parts(count: int) -> Division:
    """Divide an evaluate function's records, in order: neighbours of a sequence stay together."""
    cut = max(1, round(count * _SEARCH_SHARE))
    return {"search": tuple(range(cut)), "final": tuple(range(cut, count)) or (count - 1,)}
