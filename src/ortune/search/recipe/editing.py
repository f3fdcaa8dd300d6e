"""The model under edit: every step is a transaction, and numbers are compared."""

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

from ortune.backends.reference import Reference
from ortune.core import wording
from ortune.core.errors import BadData, OrtuneError, Refused, find_interruption, summarize_error
from ortune.core.event import Note, Progress, Sink, StepDone
from ortune.core.facts import NEWEST_IR, NEWEST_OPSET
from ortune.core.observer import Probe, Range, Ranges
from ortune.core.plugins import codec
from ortune.core.session import Tensors
from ortune.core.step import Edit, Quantizer, Recipe, Step, Transform
from ortune.data.stream import Stream, write_stream
from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.io import file, names
from ortune.graph.io.wellformed import check_model, describe_signature, retype_signature
from ortune.graph.ir.edit import list_inputs, list_outputs, take_notes, walk_nodes
from ortune.measurement.process import WorkerFailed, compute_outputs
from ortune.metrics.snr import Snr
from ortune.quantizers.calibration import calibrate, ranges_file
from ortune.search.recipe import compare
from ortune.search.recipe.built import Material

_GROWTH = 0.01  # weights that an exact step makes larger by more than this are named


class EditSession:
    """The model under edit and what it is checked against."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        material: Material,
        sink: Sink,
        *,
        trusted: bool,
        followers: Sequence[Quantizer] = (),
    ) -> None:
        self._source, self._folder, self._sink = source, folder, sink
        self.material = material
        self._trusted, self._followers = trusted, followers
        self.model = file.load(source)
        names.make_names_unique(self.model)
        self._before = describe_signature(self.model)
        self._reference: compare.ExpectedOutputs | None = None
        self._untouched, self._lossy, self._steady = True, False, True
        self._temporary_files: list[Path] = []

    def apply_exact(self, steps: Sequence[Transform]) -> list[Edit]:
        """Apply transforms; roll back those that change numbers.

        Raises:
            OrtuneError: One that changes inputs or outputs on request cannot do its work.
            Refused: One says that it must not do its work.
        """
        edits: list[Edit] = []
        for keeps, group in itertools.groupby(steps, lambda step: step.keeps_io):
            run = list(group)
            if not keeps:
                edits += [self._apply_crossing(step) for step in run]
                continue
            origin = self.model.clone()
            applied = [self._apply_step(step) for step in run]
            if any(done.count for done in applied) and self._find_difference(origin):
                self.model, applied = origin, []
                for step in run:
                    backup = self.model.clone()
                    done = self._apply_step(step)
                    if done.count and (difference := self._find_difference(backup)):
                        self.model, why = backup, f"rolled back: {difference}"
                        done = replace(done, count=0, kept=False, note=why)
                    applied.append(done)
            for done in applied:
                self._untouched &= not (done.kept and done.count)
                self._sink(StepDone(done))
            edits += applied
        return edits

    def remove_files(self) -> None:
        """Remove the files that only this work needed."""
        for path in self._temporary_files:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)

    def _apply_crossing(self, step: Transform) -> Edit:
        """Apply a transform that changes inputs or outputs, and go on from the model behind it."""
        start = time.perf_counter()
        bridge, origin = step.bridge(self.model), self.model.clone()
        edit = self._apply_step(step)
        if edit.count:
            feeds = self.material.feeds
            note = "outputs are not compared: the step changes what the model takes"
            after = self._save_state(self.model, "behind")
            if feeds is None or bridge is None:
                self.material = replace(self.material, feeds=None, calibration=())
            else:
                before = self._source if self._untouched else self._save_state(origin, "before")
                decibels, why = compare.compare_across(
                    bridge,
                    before,
                    after,
                    feeds,
                    self.material.comparison_samples,
                    self._folder,
                    custom_ops=self.material.custom_ops,
                    least_db=compare.find_exact_db(origin),
                )
                if why is not None:
                    raise Refused(
                        f"{step}: {why}", fix="put it before other steps, or leave it out"
                    )
                note = (
                    "it runs; there is nothing to compare with"
                    if decibels != decibels
                    else f"{decibels:.0f} dB"
                )
                self._temporary_files.append(self._folder / f"{len(self._temporary_files)}.stream")
                over = compare.carry_samples(bridge, feeds, self._temporary_files[-1])
                self.material = replace(self.material, feeds=over)
            self._source, self._reference = after, None
            self._untouched, self._lossy, self._trusted = True, False, False
            self._before = describe_signature(self.model)
            edit = replace(edit, note="; ".join(filter(None, (note, edit.note))))
        edit = replace(edit, seconds=time.perf_counter() - start)
        self._sink(StepDone(edit))
        return edit

    def _save_state(self, model: ir.Model, label: str) -> Path:
        """Save a state of the model for as long as this work lasts."""
        self._temporary_files.append(self._folder / f"{len(self._temporary_files)}-{label}.onnx")
        return file.save(model, self._temporary_files[-1], durable=False)

    def apply_lossy(self, step: Quantizer) -> list[Edit]:
        """Calibrate and apply a quantizer, raising the opset first where it must."""
        edits = []
        if self.model.opset_imports.get("", 0) < step.needs_opset:
            from ortune.transforms.raise_opset import RaiseOpset

            edits = self.apply_exact([RaiseOpset(to=step.needs_opset)])
            opset = self.model.opset_imports.get("", 0)
            if opset < step.needs_opset:
                raise Refused(
                    f"{step.name()} needs opset {step.needs_opset}, the model has {opset}, and "
                    f"raise-opset is {edits[0].note}",
                    fix=f"export the model with opset {step.needs_opset} or newer",
                )
        start = time.perf_counter()
        self._sink(Progress(f"applying {step.name()}"))
        probes = step.probes(self.model)
        saved = self.material.saved_ranges
        ranges: dict[str, Range] = {}
        if saved is not None and self._trusted and probes:
            ranges = ranges_file.answer_probes(saved, self.model, step, probes)
            self._sink(
                Note(
                    f"{step.name()}: {len(ranges)} of "
                    f"{wording.format_count(len(probes), 'range')} from {saved.source}"
                )
            )
        # Those before a quantizer's edits are not those behind.
        idle = saved.unanswered if saved and self._trusted else ()
        missing = [p for p in probes if p.key not in ranges and p.tensor not in idle]
        if missing and (step.needs_data or self.material.calibration):
            ranges |= self._observe_ranges(step, missing)
        self._trusted = self._untouched = False
        self._lossy, self._reference = True, None
        refined_step = refine_step(
            step, self.model, ranges, self.material, self._folder, self._sink
        )
        count = refined_step.apply(self.model, ranges)
        if not step.keeps_io:
            self._before = retype_signature(self._before, self.model)
        check_model(self.model, self._before, step.name())
        note = take_notes(self.model)
        done = Edit(str(step), count, note=note, seconds=time.perf_counter() - start)
        self._sink(StepDone(done))
        return [*edits, done]

    def _observe_ranges(self, step: Quantizer, probes: Sequence[Probe]) -> Ranges:
        """Answer from the samples; BadData where there are none."""
        feeds = self.material.feeds
        indices = self.material.calibration
        saved = self.material.saved_ranges
        if feeds is None or not indices:
            needs = f"{step.name()} needs samples to calibrate on"
            if saved is not None and self._trusted:
                tensors = wording.join_names([probe.tensor for probe in probes], ranges_file.SHOWN)
                needs = f"{saved.source} has no ranges of {tensors}, and {step.name()} needs them"
            elif saved is not None:
                needs = (
                    f"{saved.source} holds ranges of the model as it came, and {step.name()} "
                    "comes behind a step that changed it"
                )
            raise BadData(needs, fix="give samples to calibrate on with --data")
        folder = self._folder.parent / "ranges" / file.compute_digest(self._source)[:16]
        shared, key = self.material.shared, (folder.name, codec.digest(indices))
        if shared is not None and not (folder / calibrate.RANGES).is_file():
            shared.fetch_files("ranges", key, folder, [calibrate.RANGES])
        ops = self.material.custom_ops
        stream, followers = feeds.stream, () if self._lossy else self._followers
        if followers and calibrate.RangeCache(folder, [indices]).list_missing(probes):
            # In the same pass what other quantizers will ask, of tensors that the model has and
            # where observers keep little; moments wait until they are wanted.
            there = {value.name for node in walk_nodes(self.model) for value in node.outputs}
            there |= {value.name for value in self.model.graph.inputs}
            more = list(probes)
            for other in followers:
                unedited = file.load(self._source)
                names.make_names_unique(unedited)
                with contextlib.suppress(OrtuneError):
                    more += [
                        probe
                        for probe in other.probes(unedited)
                        if probe.observer.state_bytes((1024,)) <= _LITTLE and probe.tensor in there
                    ]
            # What another recipe's tensor has wrong is told when that recipe is built.
            with contextlib.suppress(OrtuneError):
                unique = list(dict.fromkeys(more))
                calibrate.calibrate_groups(
                    self.model, unique, stream, [indices], folder, custom_ops=ops
                )
        ranges = calibrate.compute_ranges(
            self.model, probes, stream, indices, folder, custom_ops=ops, sink=self._sink
        )
        if shared is not None:
            shared.store_files("ranges", key, folder, [calibrate.RANGES])
        return ranges

    def _apply_step(self, step: Transform) -> Edit:
        self._sink(Progress(f"applying {step.name()}"))
        start, backup = time.perf_counter(), self.model.clone()
        try:
            before = count_weight_bytes(self.model)
            count = step.apply(self.model)
            if count:
                signature = self._before
                if not step.keeps_io:
                    inputs, outputs = list_inputs(self.model), list_outputs(self.model)
                    signature = replace(signature, inputs=inputs, outputs=outputs)
                check_model(self.model, signature, step.name())
            growth = count_weight_bytes(self.model) / max(before, 1) - 1 if count else 0.0
            notes = [take_notes(self.model)]
            if growth > _GROWTH:
                notes.insert(0, f"weights grow by {100 * growth:,.{0 if growth >= 0.1 else 1}f} %")
            if not count and (opset := self.model.opset_imports.get("", 0)) < step.needs_opset:
                notes.append(f"it needs opset {step.needs_opset}, the model has {opset}")
            edit = Edit(str(step), count, note="; ".join(filter(None, notes)))
        except OrtuneError as error:
            if isinstance(error, Refused) or find_interruption(error) or not step.keeps_io:
                raise
            self.model = backup
            edit = Edit(str(step), 0, kept=False, note=error.what)
        except Exception as error:
            if find_interruption(error):
                raise
            self.model = backup
            edit = Edit(
                str(step), 0, kept=False, note=f"{type(error).__name__}: {summarize_error(error)}"
            )
        return replace(edit, seconds=time.perf_counter() - start)

    def _find_difference(self, origin: ir.Model) -> str | None:
        """Compare numbers with what was before; None when equal or when nothing can be run.

        The model before the exact steps, `origin`, is what counts behind a quantizer.
        """
        if not self.material.feeds or not self._steady:
            return None
        if why := compare.describe_odd_outputs(origin) or compare.describe_memory_lack(
            self._source
        ):
            self._sink(Note(why, warning=True))
            return None
        if self._reference is None:
            source = self._save_state(origin, "before") if self._lossy else self._source
            stream, checked = self.material.feeds.stream, self.material.comparison_samples
            # What is too new for onnxruntime onnx's own reference runs.
            newer = origin.opset_imports.get("", 0) > NEWEST_OPSET or origin.ir_version > NEWEST_IR
            try:
                self._reference = compare.run_reference(
                    source,
                    stream,
                    checked,
                    self._folder,
                    custom_ops=self.material.custom_ops,
                    backend=Reference() if newer else None,
                    least_db=compare.find_exact_db(origin),
                )
            except WorkerFailed as error:
                error.demand_verdict()
                return f"the source does not run on the samples: {error.failure.reason}"
        path = file.save(self.model, self._folder / "under-check.onnx", durable=False)
        try:
            difference = compare.find_difference(path, self._reference, self._folder)
            if difference is None or self._reference.job is None:
                return difference
            # It may be the model that draws random numbers.
            kept = compare.drop_random_outputs(self._reference, self._folder)
            self._steady = kept is not None
            if kept is None:
                text = "outputs are not compared: the model does not agree with itself"
                self._sink(Note(text, warning=True))
                return None
            self._reference = kept
            return compare.find_difference(path, kept, self._folder)
        finally:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)


_LITTLE = 1 << 16
"""Bytes that the state of a tensor of a thousand channels may take, to be gathered in advance."""


def list_following(recipes: Sequence[Recipe], steps: Sequence[Step]) -> tuple[Quantizer, ...]:
    """Return the quantizers that come directly behind these steps in any of the recipes."""
    done = len(steps)
    begun = (r.steps[done] for r in recipes if r.steps[:done] == tuple(steps) and r.steps[done:])
    return tuple(dict.fromkeys(step for step in begun if isinstance(step, Quantizer)))


_RUN = 2  # samples that are run with every choice


def refine_step(
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
            count = write_stream(here / "switched.stream", each)
            job = compare.make_compare_job(path, here / "switched.stream", here, ops)
            powers, first = np.zeros((len(values), 2)), dict[str, NDArray[Any]]()
            for place, answer in enumerate(
                compute_outputs(job, range(count), here / "outputs.stream")
            ):
                first = {**answer} if place % len(values) == 0 else first
                powers[place % len(values)] += Snr().record(first, answer, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            noise_ratios = powers[:, 1] / powers[:, 0]
        return [float(ratio) for ratio in np.nan_to_num(noise_ratios, nan=np.inf)]

    try:
        return step.refined(model, ranges, noise)
    except WorkerFailed as error:
        raise Refused(
            f"{step}: the model does not run on the samples: {error.failure.reason}",
            fix="run `ortune inspect` on it",
        ) from None
