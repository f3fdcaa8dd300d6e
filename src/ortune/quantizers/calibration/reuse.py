"""Answer a quantizer's probes from a file of ranges, as far as it goes and may be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortune.core.errors import BadData
from ortune.core.observer import Probe, Range
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.quantizers.calibration.ranges_file import Entry, SavedRanges, read_ranges
from ortune.transforms.common.simplify.clamps import read_clamp

_SHOWN = 4


def load_ranges(path: Path, model: Path) -> tuple[SavedRanges, tuple[str, ...]]:
    """Read a file of ranges for a model; return it and what a person should know.

    A file that was made for another model file is taken only if the quantizer that it was made for
    asks of this model for exactly the same tensors.

    Raises:
        BadData: It cannot be read, holds nothing, or is of another model.
    """
    saved = read_ranges(path)
    if not saved.entries:
        raise BadData(f"{path} holds no tensors", fix="calibrate again")
    if not saved.model or saved.model == file.compute_digest(model):
        return saved, ()
    if other := _describe_mismatch(saved, model):
        raise BadData(
            f"{path} was made for another model ({saved.model_name}) and does not fit "
            f"{model.name}: {other}",
            fix=f"calibrate this one: `ortune calibrate {model.name} --data D -o FILE`",
        )
    note = (
        f"{path} was made for another file ({saved.model_name}) whose tensors have the same "
        "names: calibrate again if the weights have changed"
    )
    return saved, (note,)


def answer_probes(
    saved: SavedRanges, model: ir.Model, step: Quantizer, probes: Sequence[Probe]
) -> dict[str, Range]:
    """Return the ranges that the file has for these probes, by the probes' keys.

    A probe that carries the step's own ``observer`` wants a range, by whatever method; another one
    wants what that very observer says. Symmetric ranges are cut to what the operator behind which
    the tensor stands can give: without it a Relu in front of the grid would not be fused away.
    """
    bounds = dict(_list_bounds(model)) if saved.symmetric else {}
    ranges = {}
    for probe in probes:
        entry = saved.entries.get(probe.tensor)
        if entry is None or probe.name or not _can_answer(saved, entry, probe, step):
            continue
        low, high = bounds.get(probe.tensor, (-np.inf, np.inf))
        ranges[probe.key] = (
            Range(max(entry.low, low), min(entry.high, high)) if saved.symmetric else entry.range
        )
    return ranges


def format_names(tensors: Sequence[str]) -> str:
    """Name a few tensors and count the rest."""
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    return ", ".join(tensors[:_SHOWN]) + more


def _can_answer(saved: SavedRanges, entry: Entry, probe: Probe, step: Quantizer) -> bool:
    if getattr(step, "observer", None) == probe.observer:
        return not entry.observer or bool(entry.channels)
    return str(probe.observer) == (entry.observer or saved.observer)


def _describe_mismatch(saved: SavedRanges, path: Path) -> str:
    """Return how the tensors differ from those that a model's quantizer asks for, or nothing."""
    model = file.load(path)
    names.make_names_unique(model)
    step = parse_plugin(Quantizer, saved.quantizer)
    probed_tensors = [probe.tensor for probe in step.probes(model)]
    saved_tensors = {*saved.entries, *saved.unanswered}
    if unexpected := [name for name in saved.entries if name not in set(probed_tensors)]:
        return f"it has no {format_names(unexpected)}"
    if missing := [name for name in probed_tensors if name not in saved_tensors]:
        return f"the file has no {format_names(missing)}"
    return ""


def _list_bounds(model: ir.Model) -> Iterator[tuple[str, tuple[float, float]]]:
    opset = model.opset_imports.get("", 0)
    for node in edit.walk_nodes(model):
        if node.domain or not node.outputs:
            continue
        name = str(node.outputs[0].name)
        if node.op_type in ("Sigmoid", "HardSigmoid", "Softmax"):
            yield name, (0.0, 1.0)
        elif (limits := read_clamp(node.outputs[0], opset)) is not None:
            yield name, (limits.low, limits.high)
