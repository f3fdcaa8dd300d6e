"""What to try where plain static int8 fails the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ortune.core import catalog
from ortune.core.facts import Facts
from ortune.core.observer import Observer
from ortune.core.step import Quantizer, Step, Transform

if TYPE_CHECKING:
    from ortune.quantizers.int8_static import Int8Static

CONVOLUTIONS = (
    ("bias-correction",),
    ("adaptive-rounding",),
    ("clip-weights",),
    ("cross-layer-equalization",),
    ("cross-layer-equalization", "adaptive-rounding"),
    ("adaptive-rounding", "bias-correction"),
)
TRANSFORMERS = (
    ("smooth-quant",),
    ("adaptive-rounding",),
    ("smooth-quant", "adaptive-rounding"),
    ("bias-correction",),
)
OBSERVERS = ("percentile", "mse", "entropy")


def rescues(step: Int8Static, facts: Facts) -> Iterator[tuple[Step, ...]]:
    """Yield the accuracy kit in front of a step, then the step with other ranges."""
    convolutions = facts.ops.get("Conv", 0) + facts.ops.get("ConvTranspose", 0)
    products = facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)
    for names in CONVOLUTIONS if convolutions >= products else TRANSFORMERS:
        found = [_step(name) for name in names]
        steps = [kit() for kit in found if kit is not None]
        if len(steps) == len(names):
            yield (*steps, step)
    known = set(catalog.names(Observer))
    for name in OBSERVERS:
        other = catalog.load(Observer, name)() if name in known else None
        if other is not None and other != step.observer:
            yield (replace(step, observer=other),)


def _step(name: str) -> type[Step] | None:
    if name in catalog.names(Transform):
        return catalog.load(Transform, name)
    return catalog.load(Quantizer, name) if name in catalog.names(Quantizer) else None
