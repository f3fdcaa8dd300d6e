"""The model under edit: every step is a transaction, and numbers are compared."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData, OrtuneError, OutOfTime, Refused, gist
from ortune.core.event import Note, Progress, Sink, StepDone
from ortune.core.observer import Probe, Range, Ranges
from ortune.core.session import Tensors
from ortune.core.step import Edit, Quantizer, Recipe, Step, Transform
from ortune.data.stream import Stream, write
from ortune.graph.analysis.facts import weight_bytes
from ortune.graph.io import file, names
from ortune.graph.io.check import ModelSignature, check, retyped, signature
from ortune.graph.ir import edit, spec
from ortune.graph.ir.edit import take_notes
from ortune.measurement.process import WorkerFailed, outputs
from ortune.metrics.snr import Snr
from ortune.quantizers.calibration import reuse
from ortune.quantizers.calibration.calibrate import RangeCache, calibrate, calibrate_groups
from ortune.search.recipe import compare
from ortune.search.recipe.material import Material

_GROWTH = 0.01
"""Weights that an exact step makes larger by more than this are named."""


class Work:
    """The model under edit and what it is checked against."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        material: Material,
        sink: Sink,
        *,
        trusted: bool,
        others: Sequence[Quantizer] = (),
    ) -> None:
        self._source, self._folder, self._sink = source, folder, sink
        self.material = material
        self._trusted, self._others = trusted, others
        self.model = file.load(source)
        names.unique(self.model)
        self._before = signature(self.model)
        self._wanted: compare.ExpectedOutputs | None = None
        self._untouched, self._lossy = True, False
        self._made: list[Path] = []

    def exact(self, steps: Sequence[Transform]) -> list[Edit]:
        """Apply transforms; roll back those that change numbers.

        Raises:
            OrtuneError: One that changes inputs or outputs on request cannot do its work.
            Refused: One says that it must not do its work.
        """
        edits: list[Edit] = []
        for keeps, group in itertools.groupby(steps, lambda step: step.keeps_io):
            run = list(group)
            edits += self._kept(run) if keeps else [self._cross(step) for step in run]
        return edits

    def clear(self) -> None:
        """Remove the files that only this work needed."""
        for path in self._made:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)

    def _kept(self, steps: Sequence[Transform]) -> list[Edit]:
        origin = self.model.clone()
        edits = [self._apply(step) for step in steps]
        if any(one.count for one in edits) and self._differs(origin):
            self.model, edits = origin, []
            for step in steps:
                backup = self.model.clone()
                done = self._apply(step)
                if done.count and (found := self._differs(backup)):
                    self.model = backup
                    done = replace(done, count=0, kept=False, note=f"rolled back: {found}")
                edits.append(done)
        for done in edits:
            self._untouched &= not (done.kept and done.count)
            self._sink(StepDone(done))
        return edits

    def _cross(self, step: Transform) -> Edit:
        """Apply a transform that changes inputs or outputs, and go on from the model behind it.

        Raises:
            OrtuneError: It cannot do its work, or does another.
        """
        start = time.perf_counter()
        bridge, origin = step.bridge(self.model), self.model.clone()
        edit = self._apply(step)
        if edit.count:
            given, said = self.material.feeds, "numbers are not compared: no samples cross it"
            after = self._file(self.model, "behind")
            if given is None or bridge is None:
                self.material = replace(self.material, feeds=None, calibration=())
            else:
                before = self._source if self._untouched else self._file(origin, "before")
                found, why = compare.differs(
                    bridge,
                    before,
                    after,
                    given,
                    self.material.checked,
                    self._folder,
                    self.material.custom_ops,
                )
                if why is not None:
                    raise Refused(
                        f"{step}: {why}", fix="put it before other steps, or leave it out"
                    )
                said = (
                    "it runs, and nothing to compare with" if found != found else f"{found:.0f} dB"
                )
                self._made.append(self._folder / f"{len(self._made)}.stream")
                over = compare.carried(bridge, given, self._made[-1])
                self.material = replace(self.material, feeds=over)
            self._source, self._wanted = after, None
            self._untouched, self._lossy, self._trusted = True, False, False
            self._before = signature(self.model)
            edit = replace(edit, note="; ".join(filter(None, (said, edit.note))))
        edit = replace(edit, seconds=time.perf_counter() - start)
        self._sink(StepDone(edit))
        return edit

    def _file(self, model: ir.Model, label: str) -> Path:
        """Save a state of the model for as long as this work lasts."""
        self._made.append(self._folder / f"{len(self._made)}-{label}.onnx")
        return file.save(model, self._made[-1], durable=False)

    def lossy(self, step: Quantizer) -> list[Edit]:
        """Calibrate and apply a quantizer, raising the opset first where it must."""
        edits = []
        if self.model.opset_imports.get("", 0) < step.needs_opset:
            from ortune.transforms.raise_opset import RaiseOpset

            edits = self.exact([RaiseOpset(to=step.needs_opset)])
        start = time.perf_counter()
        self._sink(Progress(f"applying {step.name()}"))
        probes = step.probes(self.model)
        ranges = self._known(step, probes)
        known = self.material.known if self._trusted else None
        idle = known.unanswered if known else ()
        missing = [p for p in probes if p.key not in ranges and p.tensor not in idle]
        if missing and (step.needs_data or self.material.calibration):
            ranges |= self._observed(step, missing)
        self._trusted = self._untouched = False
        self._lossy, self._wanted = True, None
        told = decided(step, self.model, ranges, self.material, self._folder, self._sink)
        count = told.apply(self.model, ranges)
        if not step.keeps_io:
            self._before = retyped(self._before, self.model)
        check(self.model, self._before, step.name())
        note = take_notes(self.model)
        done = Edit(str(step), count, note=note, seconds=time.perf_counter() - start)
        self._sink(StepDone(done))
        return [*edits, done]

    def _known(self, step: Quantizer, probes: Sequence[Probe]) -> dict[str, Range]:
        """Answer from the known ranges; those before a quantizer's edits are not those behind."""
        known = self.material.known
        if known is None or not self._trusted or not probes:
            return {}
        found = reuse.answers(known, self.model, step, probes)
        self._sink(
            Note(
                f"{step.name()}: {len(found)} of "
                f"{wording.count(len(probes), 'range')} from {known.source}"
            )
        )
        return found

    def _observed(self, step: Quantizer, probes: Sequence[Probe]) -> Ranges:
        """Answer from the samples; BadData where there are none."""
        feeds, indices, known = (
            self.material.feeds,
            self.material.calibration,
            self.material.known,
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
        ops = self.material.custom_ops
        stream, others = feeds.stream, () if self._lossy else self._others
        if others:
            observe(
                *(self.model, probes, others, self._source, stream, indices, folder),
                custom_ops=ops,
            )
        return calibrate(
            self.model, probes, stream, indices, folder, custom_ops=ops, sink=self._sink
        )

    def _apply(self, step: Transform) -> Edit:
        self._sink(Progress(f"applying {step.name()}"))
        start, backup = time.perf_counter(), self.model.clone()
        try:
            before = weight_bytes(self.model)
            count = step.apply(self.model)
            if count:
                check(self.model, self._expected(step), step.name())
            growth = weight_bytes(self.model) / max(before, 1) - 1 if count else 0.0
            said = [take_notes(self.model)]
            if growth > _GROWTH:
                said.insert(0, f"weights grow by {100 * growth:,.{0 if growth >= 0.1 else 1}f} %")
            if not count and (opset := self.model.opset_imports.get("", 0)) < step.needs_opset:
                said.append(f"it needs opset {step.needs_opset}, the model has {opset}")
            edit = Edit(str(step), count, note="; ".join(filter(None, said)))
        except OrtuneError as error:
            if isinstance(error, (Refused, OutOfTime)) or not step.keeps_io:
                raise
            self.model = backup
            edit = Edit(str(step), 0, kept=False, note=error.what)
        except Exception as error:
            self.model = backup
            edit = Edit(str(step), 0, kept=False, note=f"{type(error).__name__}: {gist(error)}")
        return replace(edit, seconds=time.perf_counter() - start)

    def _expected(self, step: Transform) -> ModelSignature:
        if step.keeps_io:
            return self._before
        inputs, outputs = spec.inputs(self.model), spec.outputs(self.model)
        return replace(self._before, inputs=inputs, outputs=outputs)

    def _differs(self, origin: ir.Model) -> str | None:
        """Compare numbers with what was before; None when equal or when nothing can be run.

        Args:
            origin: The model before the exact steps: behind a quantizer it is what counts.
        """
        if not self.material.feeds:
            return None
        if why := compare.lacks(self._source):
            self._sink(Note(why, warning=True))
            return None
        if self._wanted is None:
            source = self._file(origin, "before") if self._lossy else self._source
            stream, checked = self.material.feeds.stream, self.material.checked
            try:
                self._wanted = compare.reference(
                    source, stream, checked, self._folder, custom_ops=self.material.custom_ops
                )
            except WorkerFailed as error:
                return f"the source does not run on the samples: {error.failure.reason}"
        path = file.save(self.model, self._folder / "under-check.onnx", durable=False)
        try:
            return compare.difference(path, self._wanted, self._folder)
        finally:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)


_LITTLE = 1 << 16
"""Bytes that the state of a tensor of a thousand channels may take, to be gathered in advance."""


def following(recipes: Sequence[Recipe], steps: Sequence[Step]) -> tuple[Quantizer, ...]:
    """Return the quantizers that come directly behind these steps in any of the recipes."""
    done = len(steps)
    begun = (r.steps[done] for r in recipes if r.steps[:done] == tuple(steps) and r.steps[done:])
    return tuple(dict.fromkeys(step for step in begun if isinstance(step, Quantizer)))


def observe(
    model: ir.Model,
    probes: Sequence[Probe],
    others: Sequence[Quantizer],
    source: Path,
    stream: Path,
    indices: Sequence[int],
    folder: Path,
    *,
    custom_ops: tuple[str, ...] = (),
) -> None:
    """Answer probes, and in the same pass what other quantizers will ask, into the folder's cache.

    Nothing is run where all these probes have been answered. Of the others' those are taken whose
    tensors the model has and whose observers keep little; moments wait until they are wanted.

    Args:
        model: As the step that asks has prepared it.
        source: The model before that step.
    """
    if not RangeCache(folder, [indices]).missing(probes):
        return
    there = {value.name for node in edit.every_node(model) for value in node.outputs}
    there |= {value.name for value in model.graph.inputs}
    more = [probe for other in others for probe in _light(other, source) if probe.tensor in there]
    # What another recipe's tensor has wrong is told when that recipe is built.
    with contextlib.suppress(OrtuneError):
        every = list(dict.fromkeys([*probes, *more]))
        calibrate_groups(model, every, stream, [indices], folder, custom_ops=custom_ops)


def _light(step: Quantizer, source: Path) -> list[Probe]:
    model = file.load(source)
    names.unique(model)
    try:
        found = step.probes(model)
    except OrtuneError:
        return []
    return [probe for probe in found if probe.observer.state_bytes((1024,)) <= _LITTLE]


_RUN = 2
"""Samples that are run with every choice."""


def decided(
    step: Quantizer, model: ir.Model, ranges: Ranges, material: Material, folder: Path, sink: Sink
) -> Quantizer:
    """Have a step decide by forward runs on a few of the samples, where it wants to.

    Raises:
        Refused: The model does not run on them.
        OrtuneError: The step cannot decide.
    """
    feeds, indices = material.feeds, material.calibration[:_RUN]
    if feeds is None or not indices:
        return step.refined(model, ranges, None)
    stream, ops = feeds.stream, material.custom_ops

    def noise(switched: ir.Model, values: Sequence[Tensors]) -> Sequence[float]:
        sink(Progress(f"{step.name()}: forward runs of {len(values) - 1} choices"))
        with TemporaryDirectory(dir=folder, prefix="noise-") as name:
            here, samples = Path(name), Stream(stream)
            path = file.save(switched, here / "switched.onnx", durable=False)
            each = ({**samples[index], **more} for index in indices for more in values)
            count = write(here / "switched.stream", each)
            job = compare.job(path, here / "switched.stream", here, ops)
            powers, first = np.zeros((len(values), 2)), dict[str, NDArray[Any]]()
            for place, answer in enumerate(outputs(job, range(count), here / "outputs.stream")):
                first = {**answer} if place % len(values) == 0 else first
                powers[place % len(values)] += Snr().record(first, answer, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = powers[:, 1] / powers[:, 0]
        return [float(one) for one in np.nan_to_num(found, nan=np.inf)]

    try:
        return step.refined(model, ranges, noise)
    except WorkerFailed as error:
        raise Refused(
            f"{step}: the model does not run on the samples: {error.failure.reason}",
            fix="run `ortune inspect` on it",
        ) from None
