"""What a bundle records of the instruction set that its answers were verified on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ortune.core.trial import Plan
from ortune.engine.manifest import Arithmetic
from ortune.model.analysis.facts import facts
from ortune.model.analysis.saturation import saturable
from ortune.model.io import file

_HALVES = ("float16", "bfloat16")
_HINTS = {"f16": "float16", "bf16": "bfloat16", "fp16": "float16"}


def arithmetic(plan: Plan, models: Iterable[Path], machine: Mapping[str, str]) -> Arithmetic:
    """Read it off the plan's models and its backend's precision.

    Args:
        plan: The packed plan.
        models: Its model files.
        machine: The machine that the evidence was taken on.
    """
    integers = risky = 0
    halves = {_HINTS.get(str(getattr(plan.backend, "precision", "")), "")}
    for path in models:
        model = file.load(path)
        layers = saturable(model)
        found = facts(model)
        integers += len(layers) or int(found.quantized)
        risky += sum(1 for layer in layers if layer.risky)
        halves |= set(_HALVES) & set(found.precisions)
    return Arithmetic(
        integers,
        risky,
        tuple(sorted(halves - {""})),
        tuple(machine.get("instruction sets", "").split()),
        machine.get("system", ""),
    )
