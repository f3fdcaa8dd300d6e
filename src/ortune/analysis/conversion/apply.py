"""Apply steps to a model, in the order given, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.analysis.conversion import steps
from ortune.analysis.conversion.requests import Apply
from ortune.core.errors import BadSettings
from ortune.core.outputs import check_output_file
from ortune.core.reading import read_step
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.step import Edit, Quantizer, Recipe, Step
from ortune.core.temporary_folder import open_temporary_folder
from ortune.graph.io import file
from ortune.search.recipe.build import build


@dataclass(frozen=True, repr=False)
class AppliedSteps(TableResult):
    """A model that steps were applied to.

    Attributes:
        model: The source.
        output: The new file.
        edits: What each step did, or why it was rolled back.
        changed: Whether any step was kept.
    """

    model: Path
    output: Path
    edits: tuple[Edit, ...]
    changed: bool
    bytes_before: int
    bytes_after: int

    def summary(self) -> Mapping[str, object]:
        """Return the file, its size and how many steps were kept."""
        kept = sum(edit.kept for edit in self.edits)
        return {
            "output": self.output,
            "steps kept": f"{kept} of {len(self.edits)}",
            "bytes": f"{self.bytes_before} before, {self.bytes_after} after",
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return one row a step."""
        return [vars(edit) for edit in self.edits]


def run(request: Apply) -> AppliedSteps:
    """Build the recipe of the steps into the output file."""
    model, sink = Path(request.model), request.sink
    out = check_output_file(request.out, request.force, model)
    read = steps.add_format_step([read_step(text) for text in request.steps], request.format)
    _check_ranges(read, {"--ranges-from": request.ranges_from, "--augment": request.augment})
    steps_to_apply = (
        *steps.leave_out(read, request.exclude_from, request.threshold),
        *steps.make_fold_steps(
            request.fold_preprocess, request.picture_size, request.fold_postprocess
        ),
    )
    if not steps_to_apply:
        raise BadSettings("there is no STEP", fix="name one, such as simplify")
    with open_temporary_folder() as folder:
        data = request.read_inputs(model).read_data(Path(folder), sink)
        built = build(
            model,
            Recipe("apply", steps_to_apply),
            out,
            feeds=data.feeds,
            ranges=data.saved_ranges,
            custom_ops=request.custom_ops,
            sink=sink,
        )
    steps.warn_of_saturation(built.path, model, sink)
    sizes = file.count_file_bytes(model), file.count_file_bytes(built.path)
    return AppliedSteps(model, built.path, built.edits, built.changed, *sizes)


apply = make_verb(Apply, run)


def _check_ranges(steps: Sequence[Step], options: Mapping[str, object]) -> None:
    """Refuse options about ranges where no step asks for any.

    Raises:
        BadSettings: One is given.
    """
    quantizers = [step for step in steps if isinstance(step, Quantizer)]
    if any(step.calibrates for step in quantizers):
        return
    for name in [name for name, value in options.items() if value is not None]:
        raise BadSettings(
            f"{name}: no step here calibrates",
            fix="it is for int8-static and others that ask for ranges; leave it out",
        )
