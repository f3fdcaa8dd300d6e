"""Apply a recipe to a model file: load, edit step by step, check each, save.

Every step is a transaction. Structure, names and types are checked after each. Numbers are
compared once for a run of exact steps; only when that fails are the steps replayed one by one, and
the guilty one rolled back. A quantizer that cannot do its work fails the build: the plan without
it is another plan.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Note, Sink, StepDone, silent
from ortune.core.observer import Probe, Range, Ranges
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.core.trial import Edit
from ortune.data.feeds import Feeds
from ortune.measurement.process import WorkerFailed
from ortune.model import file, names
from ortune.model.check import check, retyped, signature
from ortune.model.edit import take_notes
from ortune.model.facts import weight_bytes
from ortune.recipe import compare, reuse
from ortune.recipe.built import Built, steps_key, store, stored
from ortune.recipe.calibrate import calibrate
from ortune.recipe.saved import Saved

_CHECKED = 2
_GROWTH = 0.01
"""Weights that an exact step makes larger by more than this are named."""


@dataclass(frozen=True)
class Material:
    """The samples that a build may use.

    Attributes:
        feeds: Samples of the model's inputs; None when there are none that run.
        calibration: Indices that quantizers observe.
        known: Ranges of an earlier calibration of the model that the build starts from; they
            answer first, and only what they do not hold is observed.
    """

    feeds: Feeds | None = None
    calibration: tuple[int, ...] = ()
    known: Saved | None = None

    @property
    def checked(self) -> tuple[int, ...]:
        """The few samples on which rewrites are compared."""
        return tuple(range(min(_CHECKED, self.feeds.count))) if self.feeds else ()

    @property
    def key(self) -> str:
        """What builds depend on beside their steps: the file of known ranges."""
        return self.known.digest if self.known else ""


def build(
    source: Path,
    recipe: Recipe,
    out: Path,
    *,
    feeds: Feeds | None = None,
    known: Saved | None = None,
    sink: Sink = silent,
) -> Built:
    """Write the model that `recipe` makes of `source` to `out`.

    Args:
        source: The model file.
        recipe: The steps.
        out: The file to write.
        feeds: Samples to calibrate on, and to compare numbers on; made-up ones only compare.
        known: Ranges of an earlier calibration of `source`; see `ortune.recipe.reuse.load`.
        sink: Receives the steps that are done.

    Raises:
        OrtuneError: A quantizer found nothing to do, or the model cannot be used.
    """
    indices = tuple(range(feeds.count)) if feeds and not feeds.synthetic else ()
    with TemporaryDirectory(prefix="ortune-") as folder:
        material = Material(feeds, indices, known)
        built = build_in(Path(folder), source, recipe, material, sink=sink)
        return Built(file.save(file.load(built.path), out), built.edits)


def build_in(
    cache: Path, source: Path, recipe: Recipe, material: Material, *, sink: Sink = silent
) -> Built:
    """Like `build`, into ``CACHE/<steps key>/NAME.onnx``; steps built before are not repeated."""
    name = source.stem
    if not recipe.steps:
        return Built(source, ())
    for count in range(len(recipe.steps), 0, -1):
        start = stored(cache, name, recipe.steps[:count], material.key)
        if start is not None:
            break
    else:
        count, start = 0, Built(source, ())
    for until in _cuts(recipe.steps, count):
        start = _extend(cache, name, start, recipe.steps[:until], count, material, sink)
        count = until
    return start


def _cuts(steps: Sequence[Step], done: int) -> list[int]:
    """Cut a recipe into runs: all leading transforms, then each quantizer with what follows it."""
    edges = [i for i, step in enumerate(steps) if isinstance(step, Quantizer) and i > done]
    return [*edges, len(steps)] if len(steps) > done else []


def _extend(
    cache: Path,
    name: str,
    start: Built,
    steps: Sequence[Step],
    done: int,
    material: Material,
    sink: Sink,
) -> Built:
    folder = cache / steps_key(steps, material.key)
    folder.mkdir(parents=True, exist_ok=True)
    first = not any(isinstance(step, Quantizer) for step in steps[:done])
    work = _Work(start.path, folder, material, sink, trusted=first)
    edits = list(start.edits)
    for exact, group in itertools.groupby(steps[done:], lambda step: isinstance(step, Transform)):
        run = list(group)
        edits += work.exact(cast(list[Transform], run)) if exact else work.lossy_all(run)
    path = file.save(work.model, folder / f"{name}.onnx")
    built = Built(path, tuple(edits))
    store(built, name)
    return built


class _Work:
    """The model under edit and what it is checked against."""

    def __init__(
        self, source: Path, folder: Path, material: Material, sink: Sink, *, trusted: bool
    ) -> None:
        self._source, self._folder, self._material, self._sink = source, folder, material, sink
        self._trusted = trusted
        self.model = file.load(source)
        names.unique(self.model)
        self._before = signature(self.model)
        self._wanted: compare.Reference | None = None

    def exact(self, steps: Sequence[Transform]) -> list[Edit]:
        """Apply transforms; roll back those that change numbers."""
        origin = self.model.clone()
        edits = [self._apply(step) for step in steps]
        if any(edit.count for edit in edits) and (why := self._differs()):
            self.model = origin
            edits = self._one_by_one(steps, why)
        for edit in edits:
            self._sink(StepDone(edit))
        return edits

    def lossy_all(self, steps: Sequence[Step]) -> list[Edit]:
        """Apply quantizers in order."""
        return [edit for step in steps for edit in self.lossy(cast(Quantizer, step))]

    def lossy(self, step: Quantizer) -> list[Edit]:
        """Calibrate and apply a quantizer, raising the opset first where it must."""
        edits = []
        if self.model.opset_imports.get("", 0) < step.needs_opset:
            from ortune.transforms.raise_opset import RaiseOpset

            edits = self.exact([RaiseOpset(to=step.needs_opset)])
        start = time.perf_counter()
        probes = step.probes(self.model)
        ranges = self._known(step, probes)
        known = self._material.known if self._trusted else None
        idle = known.unanswered if known else ()
        missing = [p for p in probes if p.key not in ranges and p.tensor not in idle]
        if missing and (step.needs_data or self._material.calibration):
            ranges |= self._observed(step, missing)
        self._trusted = False
        count = step.apply(self.model, ranges)
        if not step.keeps_io:
            self._before = retyped(self._before, self.model)
        check(self.model, self._before, step.name())
        note = take_notes(self.model)
        done = Edit(str(step), count, note=note, seconds=time.perf_counter() - start)
        self._sink(StepDone(done))
        return [*edits, done]

    def _known(self, step: Quantizer, probes: Sequence[Probe]) -> dict[str, Range]:
        """Answer from the known ranges; those before a quantizer's edits are not those behind."""
        known = self._material.known
        if known is None or not self._trusted or not probes:
            return {}
        found = reuse.answers(known, self.model, step, probes)
        self._sink(
            Note(f"{step.name()}: {len(found)} of {len(probes)} ranges from {known.source}")
        )
        return found

    def _observed(self, step: Quantizer, probes: Sequence[Probe]) -> Ranges:
        """Answer from the samples.

        Raises:
            BadData: There are none.
        """
        feeds, indices, known = (
            self._material.feeds,
            self._material.calibration,
            self._material.known,
        )
        if feeds is None or not indices:
            needs = f"{step.name()} needs samples to calibrate on"
            if known is not None and self._trusted:
                tensors = reuse.named([probe.tensor for probe in probes])
                needs = f"{known.source} has no ranges of {tensors}, and {step.name()} needs them"
            elif known is not None:
                needs = (
                    f"{known.source} holds ranges of the model as it came, and {step.name()} "
                    "comes behind a step that changed it"
                )
            raise BadData(needs, fix="give samples to calibrate on with --data")
        folder = self._folder.parent / "ranges" / file.digest(self._source)[:16]
        return calibrate(self.model, probes, feeds.stream, indices, folder)

    def _apply(self, step: Transform) -> Edit:
        start, backup = time.perf_counter(), self.model.clone()
        try:
            before = weight_bytes(self.model)
            count = step.apply(self.model)
            if count:
                check(self.model, self._before, step.name())
            growth = weight_bytes(self.model) / max(before, 1) - 1
            said = [take_notes(self.model)]
            if growth > _GROWTH:
                said.insert(0, f"weights grow by {100 * growth:.2g} %")
            edit = Edit(str(step), count, note="; ".join(filter(None, said)))
        except OrtuneError as error:
            self.model = backup
            edit = Edit(str(step), 0, kept=False, note=error.what)
        except Exception as error:
            self.model = backup
            edit = Edit(str(step), 0, kept=False, note=f"{type(error).__name__}: {error}"[:300])
        return replace(edit, seconds=time.perf_counter() - start)

    def _one_by_one(self, steps: Sequence[Transform], why: str) -> list[Edit]:
        edits = []
        for step in steps:
            backup = self.model.clone()
            edit = self._apply(step)
            if edit.count and (found := self._differs()):
                self.model = backup
                edit = replace(edit, count=0, kept=False, note=f"rolled back: {found}")
            edits.append(edit)
        return edits

    def _differs(self) -> str | None:
        """Compare numbers with the source; None when equal or when nothing can be run."""
        if not self._material.feeds:
            return None
        if self._wanted is None:
            try:
                self._wanted = compare.reference(
                    self._source, self._material.feeds.stream, self._material.checked, self._folder
                )
            except WorkerFailed as error:
                return f"the source does not run on the samples: {error.failure.reason}"
        path = file.save(self.model, self._folder / "under-check.onnx")
        try:
            return compare.difference(path, self._wanted, self._folder)
        finally:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)
