"""What to try where plain static int8 fails the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ortune.core.facts import Facts
from ortune.core.observer import Observer
from ortune.core.plugins import catalog, codec
from ortune.core.step import Quantizer, Step, Transform

if TYPE_CHECKING:
    from ortune.quantizers.int8_static import Int8Static

CONVOLUTIONS = (
    ("adaptive-rounding",),
    ("cross-layer-equalization", "adaptive-rounding"),
    ("bias-correction",),
    ("cross-layer-equalization",),
    ("clip-weights",),
)
"""The accuracy kit in front of convolutions, best bet first: see docs/quantizing.md."""

SMOOTHED = (
    ("smooth-quant", "adaptive-rounding"),
    ("smooth-quant", "bias-correction"),
)
"""In front of matrix products whose inputs are smoothed already."""

TRANSFORMERS = (("smooth-quant",), *SMOOTHED, ("adaptive-rounding",))
"""In front of matrix products."""

OBSERVERS = ("percentile", "mse", "entropy")


def rescues(step: Int8Static, facts: Facts) -> Iterator[tuple[Step, ...]]:
    """Yield the accuracy kit in front of a step, then the step on less or with other ranges.

    What prepares weights must be told which step rounds them, and that step must leave them as
    they are: smoothing is then a step of its own in front. Convolutions beside many products may
    be what costs accuracy: their weights alone are stored as integers then.
    """
    convolutions = facts.ops.get("Conv", 0) + facts.ops.get("ConvTranspose", 0)
    products = facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)
    last = replace(step, smooth=0.0, split=0)
    smoothed = step.smooth or step.split
    kit = SMOOTHED if smoothed else CONVOLUTIONS if convolutions >= products else TRANSFORMERS
    for names in kit:
        found = [_step(name, last) for name in names]
        steps = [one for one in found if one is not None]
        if len(steps) == len(names):
            yield (*steps, last)
    if convolutions and products > 1 and step.target == "cpu":
        rest = codec.build(catalog.load(Quantizer, "int8-weights"), {"fold": True})
        yield (replace(step, ops=("MatMul", "Gemm")), rest)
    known = catalog.names(Observer)
    for name in OBSERVERS:
        other = catalog.load(Observer, name)() if name in known else None
        if other is not None and type(other) is not type(step.observer):
            yield (replace(step, observer=other),)


def _step(name: str, last: Int8Static) -> Step | None:
    """Return a step of the kit for the step that follows it; None where there is none."""
    if name in catalog.names(Transform):
        return catalog.load(Transform, name)()
    if name not in catalog.names(Quantizer):
        return None
    plain = last == type(last)()
    return codec.build(catalog.load(Quantizer, name), {} if plain else {"before": last})
