"""What the models are fed: the user's samples, made-up ones, or calls that were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.calibration import reuse
from ortune.core import atomic_write
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.workload import spread
from ortune.data import augment, feeds, split, synthetic
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.experiment.request import ExperimentRequest
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker
from ortune.recipe.build import Material

_RECORDED = 64
"""Recorded calls that are used for calibration, spread over all."""
_SEARCH_SHARE = 0.6
CALIBRATION = "calibration"
"""The part that quantizers observe."""


@dataclass(frozen=True)
class Feeding:
    """Samples and how they are divided.

    Attributes:
        streams: Model name -> stream that timing runs on.
        materials: Model name -> what builds may use.
        parts: ``search`` and ``final`` -> indices of samples, or of recorded scores.
        digest: Of all of it.
        feeds: The samples; None when calls were recorded.
    """

    streams: Mapping[str, Path]
    materials: Mapping[str, Material]
    parts: Mapping[str, tuple[int, ...]]
    digest: str
    feeds: Feeds | None = None

    def settled(self, folder: Path) -> Feeding:
        """Move the samples' folder to its place and return the same samples there."""
        draft = min((p.parent for p in self.streams.values()), key=lambda p: len(p.parts))
        atomic_write.replace(draft, folder)
        materials = {}
        for name, material in self.materials.items():
            if material.feeds is not None:
                stream = folder / material.feeds.stream.relative_to(draft)
                material = replace(material, feeds=replace(material.feeds, stream=stream))
            materials[name] = material
        streams = {name: folder / p.relative_to(draft) for name, p in self.streams.items()}
        return replace(self, streams=streams, materials=materials)

    def divided(self, parts: Mapping[str, tuple[int, ...]]) -> Feeding:
        """Return the same samples with other parts, calibration among them."""
        materials = dict(self.materials)
        if MAIN in materials:
            materials[MAIN] = replace(materials[MAIN], calibration=parts[CALIBRATION])
        return replace(self, parts=parts, materials=materials)

    def prepared(self, request: ExperimentRequest, folder: Path, sink: Sink) -> Feeding:
        """Return the same samples with what the request adds to calibration: ranges and copies.

        Raises:
            BadData: The file of ranges is of another model, or the samples cannot be altered.
        """
        material = self.materials.get(MAIN)
        if material is None or not (request.ranges_from or request.augment):
            return self
        said = []
        if request.ranges_from:
            known, notes = reuse.load(Path(request.ranges_from), request.models[0])
            material, said = replace(material, known=known), [known.digest]
            for text in notes:
                sink(Note(text, warning=True))
        if request.augment and material.feeds is not None:
            ways = augment.read(request.augment)
            made = augment.augment(material.feeds, material.calibration, ways, folder)
            material = replace(material, feeds=made, calibration=tuple(range(made.count)))
            said += map(str, ways)
            for text in made.notes:
                sink(Note(text))
        digest = codec.digest([self.digest, *said])
        return replace(self, materials={MAIN: material}, digest=digest)


def given(request: ExperimentRequest, facts: Facts, folder: Path, sink: Sink) -> Feeding:
    """Read the user's samples, or make some up when there are none.

    Raises:
        BadData: They cannot be used with the model, or calibration and evaluation overlap.
    """
    if len(request.models) > 1:
        raise BadSettings(
            "--data cannot feed several models", fix="leave it out; --evaluate feeds them"
        )
    inputs, batch = facts.inputs, request.driven.batch
    if request.data is None:
        sink(Note("no data: made-up samples, and only exact plans are tried", warning=True))
        found = synthetic.make(inputs, folder, shapes=request.shapes, ranges=request.ranges)
    else:
        found = feeds.load(request.data, inputs, folder, labels=request.labels, batch=batch)
    own = None
    if request.calibration is not None:
        own = feeds.load(request.calibration, inputs, folder / "calibration")
    divided = split.split(found, own)
    for text in (*found.notes, *divided.notes):
        sink(Note(text))
    parts = {"search": divided.search, "final": divided.final}
    if request.whole:
        parts = {"search": tuple(range(found.count)), "final": (0,)}
    labels = None if found.labels is None else [str(label) for label in found.labels]
    seen = () if found.synthetic else divided.calibration
    content = [found.digests, labels, found.groups, own.digests if own else None]
    return Feeding(
        {MAIN: found.stream},
        {MAIN: Material(own or found, seen, custom_ops=request.original.custom_ops)},
        parts,
        codec.digest([content, request.functions_digest()]),
        found,
    )


def recorded(request: ExperimentRequest, worker: Worker, folder: Path) -> Feeding:
    """Record the calls that the evaluate function makes on the loaded baseline.

    Raises:
        BadData: It returns nothing, or never runs one of the models.
    """
    models = request.names
    streams = {name: folder / f"{name or 'model'}.stream" for name in models}
    folder.mkdir(parents=True, exist_ok=True)
    answer = worker.ask(
        "evaluate",
        function=request.evaluate,
        record={name: str(path.resolve()) for name, path in streams.items()},
        timeout_s=max(300.0, 2 * request.time),
    )
    records = answer["records"][0]
    if not records:
        raise BadData(f"{request.evaluate} returned no records", fix="return one record a sample")
    idle = [models[name].stem for name, calls in answer["calls"].items() if not calls]
    if idle:
        raise BadData(
            f"{request.evaluate} never ran {', '.join(idle)}", fix="call every model that is given"
        )
    materials = {}
    for name, path in streams.items():
        count = len(Stream(path))
        fed = Feeds(path, count, (), None, None, request.evaluate or "")
        seen = max(1, round(count * _SEARCH_SHARE))
        chosen = spread(seen, _RECORDED)
        materials[name] = Material(fed, chosen, custom_ops=request.original.custom_ops)
    parts = record_parts(len(records), whole=request.whole)
    digest = codec.digest([len(records), request.functions_digest()])
    return Feeding(streams, materials, parts, digest)


def record_parts(count: int, *, whole: bool) -> dict[str, tuple[int, ...]]:
    """Divide an evaluate function's records, in order: neighbours of a sequence stay together."""
    cut = count if whole else max(1, round(count * _SEARCH_SHARE))
    return {"search": tuple(range(cut)), "final": tuple(range(cut, count)) or (count - 1,)}
