"""The files that one model can be served as: as it came, rewritten, quantized, saved offline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe
from ortune.measurement.capabilities import capabilities
from ortune.measurement.offline import optimize_offline
from ortune.recipe.build import Material, build_in
from ortune.recipe.space import clean

NONE, GRAPH, CLEANED = "none", "graph optimization", "cleaned + graph optimization"
QUANTIZED, BOTH = "quantized", "both"
OFFLINE, ORT = "offline file", ".ort file"
_PREFERRED = ("int8-static", "int8-dynamic", "int8-weights")


@dataclass(frozen=True)
class Variant:
    """One way to serve the model.

    Attributes:
        name: What it is called.
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


def variants(
    model: Path,
    facts: Facts,
    backend: Cpu,
    quantizer: Quantizer | None,
    material: Material,
    root: Path,
    sink: Sink,
) -> Iterator[Variant]:
    """Make every file and yield how it is served; what cannot be made is told to the sink.

    Args:
        model: The file as it came.
        facts: Of it.
        backend: Its level is set here, its other fields hold for all.
        quantizer: The step behind "quantized" and "both"; None leaves them out.
        material: Samples to check and calibrate with.
        root: Folder for the files.
        sink: Receives notes.
    """
    raw, full = replace(backend, level="disabled"), replace(backend, level="all")
    yield Variant(NONE, model, raw, 0.0)
    yield Variant(GRAPH, model, full, 0.0, NONE)
    yield from _saved(GRAPH, model, 0.0, raw, root / "graph", sink)
    recipe = clean(facts, backend, capabilities(backend))
    if recipe.steps:
        cleaned = _made(CLEANED, recipe, model, material, root / "clean", sink)
        if cleaned is not None:
            yield Variant(CLEANED, cleaned[0], full, cleaned[1], GRAPH)
    if quantizer is None:
        return
    alone = Recipe(QUANTIZED, (quantizer,))
    quantized = _made(QUANTIZED, alone, model, material, root / "quantized", sink)
    if quantized is not None:
        yield Variant(QUANTIZED, quantized[0], raw, quantized[1], NONE)
    joined = Recipe(BOTH, (*recipe.steps, quantizer))
    both = _made(BOTH, joined, model, material, root / "both", sink)
    if both is not None:
        yield Variant(BOTH, both[0], full, both[1], GRAPH)
        yield from _saved(BOTH, both[0], both[1], raw, root / "both", sink)


def quantizer_for(spec: str, facts: Facts, backend: Cpu, sink: Sink) -> Quantizer | None:
    """Return the step asked for, or the first that a search would offer; None if none fits.

    Raises:
        BadSettings: `spec` names no quantizer, or cannot be read.
    """
    if spec:
        if spec.partition("(")[0].strip() not in catalog.names(Quantizer):
            raise BadSettings(
                f"'{spec}' is no quantizer",
                fix=f"use one of: {', '.join(catalog.names(Quantizer))}",
            )
        return parse(Quantizer, spec)
    for name in _PREFERRED:
        for offer in catalog.load(Quantizer, name).offers(facts, backend, capabilities(backend)):
            sink(Note(f"quantized by {offer}"))
            return offer
    sink(Note("no quantizer offers anything for this model: not quantized"))
    return None


def _made(
    name: str, recipe: Recipe, model: Path, material: Material, root: Path, sink: Sink
) -> tuple[Path, float] | None:
    """Build a recipe in a folder of its own: no step is taken from another build."""
    start = time.perf_counter()
    try:
        built = build_in(root, model, recipe, material)
    except OrtuneError as error:
        sink(Note(f"'{name}' is left out: {error.what}", warning=True))
        return None
    if not built.changed:
        sink(Note(f"'{name}' is left out: there is nothing to rewrite"))
        return None
    return built.path, time.perf_counter() - start


def _saved(
    name: str, source: Path, once_s: float, raw: Cpu, root: Path, sink: Sink
) -> Iterator[Variant]:
    """Save what the runtime makes of a file at level all, as ONNX and in its own format.

    The runtime writes its own format where the file's name ends in ``.ort``.
    """
    root.mkdir(parents=True, exist_ok=True)
    for kind, suffix in ((OFFLINE, ".onnx"), (ORT, ".ort")):
        out = root / f"offline{suffix}"
        taken = _timed(partial(optimize_offline, source, "all", out))
        if isinstance(taken, OrtuneError):
            sink(Note(f"'{name}, {kind}' is left out: {taken.what}", warning=True))
        else:
            yield Variant(f"{name}, {kind}", out, raw, once_s + taken, name)


def _timed(act: Callable[[], object]) -> float | OrtuneError:
    start = time.perf_counter()
    try:
        act()
    except OrtuneError as error:
        return error
    return time.perf_counter() - start
