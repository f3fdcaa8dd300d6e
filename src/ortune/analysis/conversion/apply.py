"""Apply steps to a model, in the order given, each checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.analysis.conversion import steps
from ortune.analysis.conversion.requests import Apply
from ortune.core.errors import BadSettings, Refused
from ortune.core.event import Note
from ortune.core.outputs import check_output_file
from ortune.core.reading import read_step
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.step import Edit, Quantizer, Recipe
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.feeds import Feeds
from ortune.graph.io import file
from ortune.measurement.process import WorkerFailed
from ortune.search.recipe import compare
from ortune.search.recipe.build import build


@dataclass(frozen=True, repr=False)
class AppliedSteps(TableResult):
    """A model that steps were applied to, and what each step did or why it was rolled back."""

    model: Path
    output: Path
    edits: tuple[Edit, ...]
    changed: bool
    bytes_before: int
    bytes_after: int

    def summary(self) -> Mapping[str, object]:
        kept = sum(edit.kept for edit in self.edits)
        return {
            "output": self.output,
            "steps kept": f"{kept} of {len(self.edits)}",
            "bytes before": self.bytes_before,
            "bytes after": self.bytes_after,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        return [vars(edit) for edit in self.edits]


def run(request: Apply) -> AppliedSteps:
    """Build the recipe of the steps into the output file."""
    model, sink = Path(request.model), request.sink
    out = check_output_file(request.out, request.force, model)
    read = steps.add_format_step([read_step(text) for text in request.steps], request.format)
    if not any(isinstance(step, Quantizer) and step.calibrates for step in read):
        for name, value in (
            ("--ranges-from", request.ranges_from),
            ("--augment", request.augment),
        ):
            if value is not None:
                raise BadSettings(
                    f"{name}: no step here calibrates",
                    fix="leave it out, or add a step that calibrates, such as int8-static",
                )
    folds = (request.fold_preprocess, request.picture_size, request.fold_postprocess)
    steps_to_apply = (
        *steps.leave_out(read, request.exclude_from, request.threshold),
        *steps.make_fold_steps(*folds),
    )
    if not steps_to_apply:
        raise BadSettings("no STEP is given", fix="give one, such as simplify")
    with open_temporary_folder() as folder:
        data = request.read_inputs(model).read_data(folder, sink)
        lossy = any(isinstance(step, Quantizer) for step in steps_to_apply)
        keeps_io = all(step.keeps_io for step in steps_to_apply)
        checked = data.feeds if lossy and keeps_io else None
        target = out if checked is None else folder / "built" / model.name
        if checked is not None:
            target.parent.mkdir()
        built = build(
            model,
            Recipe("apply", steps_to_apply),
            target,
            feeds=data.feeds,
            ranges=data.saved_ranges,
            custom_ops=request.custom_ops,
            sink=sink,
        )
        if checked is not None:
            refuse_broken_answers(
                request, built.path, checked, folder, random=bool(data.agreement.random)
            )
            file.save(file.load(built.path), out)
    steps.warn_of_saturation(out, model, sink)
    steps.warn_of_growth(out, model, sink)
    sizes = file.count_file_bytes(model), file.count_file_bytes(out)
    return AppliedSteps(model, out, built.edits, built.changed, *sizes)


apply = make_verb(Apply, run)


_NO_KERNEL = "Could not find an implementation"
"""What onnxruntime says of a type that its CPU provider lacks, such as bfloat16."""

_CHECKED = 4
"""Samples whose answers are looked at."""


def refuse_broken_answers(
    request: Apply, path: Path, feeds: Feeds, folder: Path, *, random: bool = False
) -> None:
    """Refuse a result that answers with NaN, mostly noise, or not at all, unlike the source.

    Where the source is `random`, noise is its own. With --force it is only told, as is a
    precision that the CPU has no kernels for.

    Raises:
        Refused: It does.
    """
    model, samples = Path(request.model), range(min(_CHECKED, feeds.count))
    if (why := compare.describe_memory_lack(model)) is not None:
        request.sink(Note(why, warning=True))
        return
    try:
        expected = compare.run_reference(
            model, feeds.stream, samples, folder, custom_ops=request.custom_ops
        )
    except WorkerFailed as error:
        error.demand_verdict()
        request.sink(Note(f"not checked for NaN: {error.failure.reason}"))
        return
    problem = ""
    try:
        snr = compare.measure_snr_db(path, expected, folder)
        if math.isnan(snr):
            problem = "the result answers with NaN or infinity where the source does not"
        elif snr < 0 and not random:
            problem = f"the result differs too much from the source: SNR {snr:.1f} dB"
    except WorkerFailed as error:
        error.demand_verdict()
        if _NO_KERNEL in error.failure.reason:
            request.sink(Note(f"not checked for NaN: {error.failure.reason}"))
        else:
            problem = f"the result does not run where the source does: {error.failure.reason}"
    if not problem:
        return
    if not request.force:
        raise Refused(
            problem,
            fix="leave out the step, or exclude nodes with its field `exclude`; --force "
            "writes the result anyway",
        )
    request.sink(Note(problem, warning=True))
