"""Each region of a model quantized alone, in one switched model or by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ortune.calibration.calibrate import calibrate
from ortune.core.errors import BadData, OrtuneError, Refused
from ortune.core.event import Progress, Sink, silent
from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer
from ortune.model.analysis.facts import weight_bytes
from ortune.model.graph import edit
from ortune.model.io import file, names
from ortune.recipe.material import Material
from ortune.regions.grouping import By, Region, regions
from ortune.regions.leaving import alone, leaving
from ortune.regions.neighbours import neighbours
from ortune.regions.prepared import Prepared
from ortune.regions.switched import Switched
from ortune.transforms.raise_opset import RaiseOpset


@dataclass(frozen=True)
class Form:
    """A region and how it is run quantized alone.

    Attributes:
        switch: Its place among the switches of the joint model; None where it has no place there.
        path: The model with this region alone quantized, where it is not in the joint one.
        changes: Whether the step changes it at all.
        saved: Bytes that it saves in the file.
        error: Why there is no such form.
    """

    region: Region
    switch: int | None = None
    path: Path | None = None
    changes: bool = True
    saved: int = 0
    error: str = ""


@dataclass(frozen=True)
class Forms:
    """The forms of all regions.

    Attributes:
        joint: The switched model, in float while no switch is on.
        switches: How many it has.
        all: In the graph's order.
        pairs: Neighbours among them, by name.
    """

    joint: Path
    switches: int
    all: tuple[Form, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    def named(self, name: str) -> Form:
        """Return a region's form."""
        return next(form for form in self.all if form.region.name == name)


def as_given(path: Path, step: Quantizer) -> ir.Model:
    """Return the model as a step gets it in a build: names unique, raised to its opset."""
    model = file.load(path)
    names.unique(model)
    if model.opset_imports.get("", 0) < step.needs_opset:
        RaiseOpset(to=step.needs_opset).apply(model)
    return model


def weighted(model: ir.Model, by: By = "region") -> list[Region]:
    """Return the regions of a model that a quantizer of layers can choose: those with weights."""
    return [region for region in regions(model, by) if region.bytes]


def prepare(
    path: Path,
    step: Quantizer,
    material: Material,
    folder: Path,
    *,
    ranges: Path,
    by: By = "region",
    joint: bool = True,
    rounded: Path | None = None,
    sink: Sink = silent,
) -> Forms:
    """Quantize each region of a model alone.

    Args:
        path: The model as the step gets it, or as it was before its weights were rounded.
        material: Samples to calibrate on.
        folder: Receives the models.
        ranges: Folder of answers that are known, as builds keep them.
        rounded: The model as the step gets it, where that is another: each region gets its
            constants, so that a region costs what rounding them loses too.
        joint: Put them into one switched model where that can be; else each has its own.

    Raises:
        Refused: The step leaves no node out by name, or rounding changed more than constants.
        OrtuneError: It has no samples to calibrate on, or the model cannot be used.
    """
    plain = as_given(path, step)
    found = weighted(plain, by)
    every = [name for region in found for name in region.layers]
    steps = [alone(step, plain, region.layers, every) for region in found]
    _rewrite(plain, step, every)
    source, prepared = plain, None
    if rounded is not None:
        source = as_given(rounded, step)
        _rewrite(source, step, every)
        prepared = Prepared(plain, source)
    pairs = neighbours(plain, found)
    probes = [probe for own in steps for probe in own.probes(source.clone())]
    answers = _answers(source, probes, material, ranges, sink)
    board = Switched(plain, len(found)) if joint else None
    made: list[Form] = []
    size = weight_bytes(plain)
    for at, (region, own) in enumerate(zip(found, steps, strict=True)):
        sink(Progress("quantizing regions alone", at, len(found)))
        draft = plain.clone()
        if prepared is not None:
            prepared.give(draft, region.nodes)
        form = _quantized(region, own, draft, answers)
        if form.changes and not form.error:
            form = Form(region, saved=size - weight_bytes(draft))
            form = _placed(form, board, draft, at, folder)
        made.append(form)
    model, count = (plain, 0) if board is None else (board.model, len(found))
    saved = file.save(model, folder / "switched.onnx", durable=False)
    return Forms(saved, count, tuple(made), pairs)


def _rewrite(model: ir.Model, step: Quantizer, every: Sequence[str]) -> None:
    """Do the exact rewrites that a step begins with, in place."""
    edit.inline(model)
    leaving(step, model, every).probes(model)
    edit.take_notes(model)


def _answers(
    model: ir.Model, probes: Sequence[Probe], material: Material, folder: Path, sink: Sink
) -> Ranges:
    """Observe what the forms ask for, in one pass."""
    wanted = list(dict.fromkeys(probes))
    if not wanted:
        return {}
    if material.feeds is None or not material.calibration:
        raise BadData(
            "regions are quantized alone on samples, and there are none to calibrate on",
            fix="give samples with --data",
        )
    return calibrate(
        model,
        wanted,
        material.feeds.stream,
        material.calibration,
        folder,
        custom_ops=material.custom_ops,
        sink=sink,
    )


def _quantized(region: Region, step: Quantizer, draft: ir.Model, ranges: Ranges) -> Form:
    """Apply the step that takes one region alone, in place."""
    try:
        step.apply(draft, ranges)
    except Refused:
        return Form(region, changes=False)
    except OrtuneError as error:
        return Form(region, error=error.what)
    return Form(region)


def _placed(form: Form, board: Switched | None, draft: ir.Model, at: int, folder: Path) -> Form:
    """Put a form into the joint model, or into a file of its own where it has no place there."""
    if board is not None:
        try:
            board.add(at, draft, form.region.nodes)
        except Refused:
            pass
        else:
            return replace(form, switch=at)
    own = file.save(draft, folder / f"alone-{at}.onnx", durable=False)
    return replace(form, path=own)
