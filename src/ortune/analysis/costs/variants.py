"""The files that one model can be served as: original, rewritten, quantized, saved offline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note, Progress, Sink
from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe, Step
from ortune.measurement.capabilities import capabilities
from ortune.measurement.offline import optimize_offline
from ortune.recipe.build import Material, build_in
from ortune.recipe.space import clean

NONE, GRAPH, CLEANED = "none", "graph optimization", "cleaned + graph optimization"
QUANTIZED, BOTH = "quantized", "both"
OFFLINE, ORT = "offline file", ".ort file"
_PREFERRED = ("int8-static", "int8-dynamic", "int8-weights")


@dataclass(frozen=True)
class Subject:
    """What all variants are made of.

    Attributes:
        model: The file as it came.
        backend: Its level is set by each variant, its other fields hold for all.
        quantizer: The step behind "quantized" and "both"; None leaves them out.
        material: Samples to check and calibrate with.
        root: Folder for the files.
        sink: Told what cannot be made.
    """

    model: Path
    facts: Facts
    backend: Cpu
    quantizer: Quantizer | None
    material: Material
    root: Path
    sink: Sink

    def leave_out(self, name: str, reason: str, *, warning: bool = True) -> None:
        """Tell the sink that there is no such variant."""
        self.sink(Note(f"'{name}' is left out: {reason}", warning=warning))


@dataclass(frozen=True)
class Variant:
    """One way to serve the model.

    Attributes:
        file: What a session loads.
        backend: How; `level` says how far the runtime still rewrites the graph at load.
        once_s: Seconds of making the file, the start of processes included.
        against: Name of the variant whose latency it is compared with; empty for the first.
    """

    name: str
    file: Path
    backend: Cpu
    once_s: float
    against: str = ""

    @property
    def size(self) -> int:
        """Bytes of the file and of external data beside it."""
        beside = self.file.with_name(f"{self.file.name}.data")
        return sum(path.stat().st_size for path in (self.file, beside) if path.is_file())


def variants(subject: Subject) -> Iterator[Variant]:
    """Make every file and yield how it is served."""
    raw, full = (replace(subject.backend, level=level) for level in ("disabled", "all"))
    yield Variant(NONE, subject.model, raw, 0.0)
    graph = Variant(GRAPH, subject.model, full, 0.0, NONE)
    yield graph
    yield from _saved(subject, graph)
    rewrites = clean(subject.facts, subject.backend, capabilities(subject.backend)).steps
    if rewrites:
        yield from _built(subject, CLEANED, rewrites, full, GRAPH)
    if subject.quantizer is None:
        return
    yield from _built(subject, QUANTIZED, (subject.quantizer,), raw, NONE)
    for both in _built(subject, BOTH, (*rewrites, subject.quantizer), full, GRAPH):
        yield both
        yield from _saved(subject, both)


def quantizer_for(spec: str, facts: Facts, backend: Cpu, sink: Sink) -> Quantizer | None:
    """Return the step asked for, or the first that a search would offer; None if none fits.

    Raises:
        BadSettings: `spec` names no quantizer, or cannot be read.
    """
    if spec:
        known = catalog.names(Quantizer)
        if spec.partition("(")[0].strip() not in known:
            raise BadSettings(
                f"'{spec}' is not a quantizer", fix=f"use one of: {', '.join(known)}"
            )
        return parse(Quantizer, spec)
    for name in _PREFERRED:
        for offer in catalog.load(Quantizer, name).offers(facts, backend, capabilities(backend)):
            sink(Note(f"quantized by {offer}"))
            return offer
    sink(Note("no quantizer offers anything for this model: not quantized"))
    return None


def _built(
    subject: Subject, name: str, steps: tuple[Step, ...], backend: Cpu, against: str
) -> Iterator[Variant]:
    """Build a recipe in a folder of its own: no step is taken from another build."""
    recipe, start = Recipe(name, steps), time.perf_counter()
    subject.sink(Progress(f"building '{name}'"))
    try:
        built = build_in(subject.root / name, subject.model, recipe, subject.material)
    except OrtuneError as error:
        subject.leave_out(name, error.what)
        return
    if built.changed:
        yield Variant(name, built.path, backend, time.perf_counter() - start, against)
    else:
        subject.leave_out(name, "there is nothing to rewrite", warning=False)


def _saved(subject: Subject, loaded: Variant) -> Iterator[Variant]:
    """Save what the runtime makes of a file at level all, as ONNX and in its own format.

    The runtime writes its own format where the file's name ends in ``.ort``.
    """
    raw = replace(subject.backend, level="disabled")
    for kind, suffix in ((OFFLINE, ".onnx"), (ORT, ".ort")):
        name = f"{loaded.name}, {kind}"
        subject.sink(Progress(f"building '{name}'"))
        out, start = subject.root / f"{loaded.name}, offline{suffix}", time.perf_counter()
        try:
            optimize_offline(loaded.file, "all", out)
        except OrtuneError as error:
            subject.leave_out(name, error.what)
            continue
        once_s = loaded.once_s + time.perf_counter() - start
        yield Variant(name, out, raw, once_s, loaded.name)
