"""One pass over the samples for all that the recipes of a search watch of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from ortune.calibration.cache import RangeCache
from ortune.calibration.calibrate import calibrate_groups
from ortune.core.errors import OrtuneError
from ortune.core.observer import Probe
from ortune.core.step import Quantizer, Recipe, Step
from ortune.model.graph import edit
from ortune.model.io import file, names

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
