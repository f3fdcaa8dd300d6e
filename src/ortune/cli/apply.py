"""Apply steps to a model, in the order given, each checked."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import _excluding, _folding, _formats, shared
from ortune.cli.main import DONE, NO
from ortune.core.errors import BadData, BadSettings, OrtuneError

if TYPE_CHECKING:
    from ortune.calibration.ranges_file import Saved
    from ortune.core.event import Sink
    from ortune.core.step import Step
    from ortune.data.feeds import Feeds
    from ortune.recipe.built import Built

_LINE = 240
_MADE_UP = 4
"""Samples to compare numbers on when none are given."""


@shared.verb(shared.Verb)
@shared.model
@click.argument("steps", metavar="STEP...", nargs=-1)
@shared.data
@shared.ranges_from
@shared.augment
@shared.shapes
@shared.ranges
@shared.custom_ops
@_excluding.options
@_formats.option
@_folding.options
@shared.output("The new model.", required=True)
@shared.force
def command(
    model: Path,
    steps: tuple[str, ...],
    data: str | None,
    ranges_from: Path | None,
    augment: str | None,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    custom_ops: tuple[str, ...],
    exclude_from: Path | None,
    threshold: float | None,
    form: str | None,
    fold_preprocess: Path | None,
    picture_size: str | None,
    fold_postprocess: tuple[str, ...],
    out: Path,
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Apply STEPs to MODEL in the order given and write the result.

    A step is a transform or a quantizer with its fields, or a rule of your own: FILE.py:NAME.
    Transforms that would change structure, types or numbers are rolled back; the result is then
    written without them, and the exit code is 1. Static quantizers calibrate on --data, or take
    the ranges of an earlier calibration with --ranges-from. Behind all steps, --fold-preprocess
    and --fold-postprocess change what the model takes and gives.

    \b
    Example:
      ortune apply model.onnx simplify fuse-batch-norm -o clean.onnx
      ortune apply model.onnx simplify "int8-static(observer=percentile)" --data D -o out.onnx
      ortune apply model.onnx --fold-preprocess photos/preprocess.toml -o takes_pictures.onnx
    """
    import tempfile

    from ortune.cli.terminal import progress
    from ortune.core.step import Recipe
    from ortune.core.steps import step
    from ortune.model.io import file
    from ortune.recipe.build import build

    shared.free(out, force, model)
    read = _formats.written([step(text) for text in steps], form)
    _taken(read, {"--ranges-from": ranges_from, "--augment": augment})
    every = (
        *_excluding.leave_out(read, exclude_from, threshold),
        *_folding.folds(fold_preprocess, picture_size, fold_postprocess),
    )
    if not every:
        raise BadSettings("there is no STEP", fix="name one, such as simplify")
    recipe = Recipe("apply", every)
    with (
        tempfile.TemporaryDirectory(prefix="ortune-") as folder,
        progress.held(progress.lines(verbose), verbose=verbose) as sink,
    ):
        known = known_ranges(ranges_from, model, sink)
        feeds = samples(model, data, shapes, ranges, Path(folder), sink, custom_ops)
        feeds = augmented(feeds, augment, Path(folder), sink)
        built = build(
            model, recipe, out, feeds=feeds, known=known, custom_ops=custom_ops, sink=sink
        )
        _formats.warn(built.path, model, sink)
    before, after = file.size(model), file.size(built.path)
    result = {
        "model": model,
        "output": built.path,
        "edits": built.edits,
        "changed": built.changed,
        "bytes_before": before,
        "bytes_after": after,
    }
    shared.answer(json_to, result, lambda: _show(built, before, after))
    return DONE if all(edit.kept for edit in built.edits) else NO


def _taken(steps: Sequence[Step], given: Mapping[str, object]) -> None:
    """Refuse options about ranges where no step asks for any.

    Raises:
        BadSettings: One is given.
    """
    from ortune.core.step import Quantizer

    quantizers = [step for step in steps if isinstance(step, Quantizer)]
    if any(type(step).probes is not Quantizer.probes for step in quantizers):
        return
    for name in [name for name, value in given.items() if value is not None]:
        raise BadSettings(
            f"{name}: no step here calibrates",
            fix="it is for int8-static and others that ask for ranges; leave it out",
        )


def samples(
    model: Path,
    data: str | None,
    shapes: Sequence[str],
    ranges: Sequence[str],
    folder: Path,
    sink: Sink,
    custom_ops: tuple[str, ...] = (),
) -> Feeds | None:
    """Return the user's samples, or made-up ones to check with; None when none of those run."""
    from ortune.core.event import Note
    from ortune.data import feeds, synthetic
    from ortune.model.analysis.facts import facts
    from ortune.model.io import file

    inputs = facts(file.load(model)).inputs
    if data is not None:
        found = feeds.load(data, inputs, folder)
        for text in found.notes:
            sink(Note(text))
        return found
    try:
        found = synthetic.make(
            inputs,
            folder,
            shapes=shared.shape_map(shapes),
            ranges=shared.range_map(ranges),
            count=_MADE_UP,
        )
        _try(model, found, folder, custom_ops)
    except OrtuneError as error:
        if shapes or ranges:
            raise
        what = textwrap.shorten(error.what, _LINE, placeholder=" ...")
        sink(Note(f"numbers are not compared: {what}", warning=True))
        return None
    for text in found.notes:
        sink(Note(text))
    return found


def known_ranges(path: Path | None, model: Path, sink: Sink) -> Saved | None:
    """Read ``--ranges-from`` for a model."""
    from ortune.calibration import reuse
    from ortune.core.event import Note

    if path is None:
        return None
    found, notes = reuse.load(path, model)
    for text in notes:
        sink(Note(text, warning=True))
    return found


def augmented(feeds: Feeds | None, text: str | None, folder: Path, sink: Sink) -> Feeds | None:
    """Add the copies of ``--augment`` to the samples that are calibrated on.

    Raises:
        BadData: There are no samples but made-up ones.
    """
    from ortune.core.event import Note
    from ortune.data import augment

    if text is None:
        return feeds
    ways = augment.read(text)
    if feeds is None or feeds.synthetic:
        raise BadData("--augment alters samples, and none are given", fix="give --data too")
    found = augment.augment(feeds, range(feeds.count), ways, folder)
    for said in found.notes:
        sink(Note(said))
    return found


def _try(model: Path, found: Feeds, folder: Path, custom_ops: tuple[str, ...]) -> None:
    """Run the model once on made-up samples.

    Raises:
        BadData: It does not take them.
    """
    from ortune.backends.cpu import Cpu
    from ortune.measurement.job import MAIN, WorkerJob
    from ortune.measurement.process import WorkerFailed, ask_once

    out = folder.resolve() / "try"
    backend, stream = Cpu(custom_ops=custom_ops), found.stream.resolve()
    job = WorkerJob({MAIN: model.resolve()}, backend, {MAIN: stream}, out)
    try:
        ask_once(job, ("first", {}))
    except WorkerFailed as error:
        raise BadData(
            f"{model.name} does not run on made-up samples: {error.failure.reason}",
            fix="give --data, or --shape and --range of its inputs",
        ) from None


def _show(built: Built, before: int, after: int) -> None:
    rows = []
    for edit in built.edits:
        state = edit.note if not edit.kept else ("nothing to do" if not edit.count else "")
        rows.append((edit.step, edit.count, f"{edit.seconds:.1f}", state))
    shared.table(("step", "edits>", "s>", ""), rows)
    for edit in built.edits:
        if edit.kept and edit.note:
            shared.say(f"{edit.step}: {edit.note}")
    shared.say(f"{built.path}: {shared.size(before)} before, {shared.size(after)} after")
