"""Float layers that a quantizer could take, and what that would gain by the ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ortune.analysis.profiling import kernel_groups, patterns
from ortune.analysis.profiling.roofline import (
    KernelRoofline,
    Roofs,
    arithmetic,
    by_bound,
    roofs,
    verdicts,
)
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.profile import Action, Ceilings, Kernel, Profile
from ortune.core.step import Quantizer
from ortune.measurement.capabilities import capabilities
from ortune.recipe.space import clean, recipes

MULTIPLYING = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention"}
)
_WORTH = 0.01
"""Share of the layers' time from which an estimate is worth a line."""


def quantizations(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> Iterator[Action]:
    """Float layers with constant weights, by the offers that the search has for this backend."""
    judged, found = verdicts(profile), capabilities(backend)
    known = judged or tuple(_unjudged(kernel) for kernel in profile.kernels)
    offered = [step for recipe in recipes(facts, backend, found) for step in recipe.steps]
    seen: set[str] = set()
    for step in (one for one in offered if isinstance(one, Quantizer)):
        ops = frozenset(getattr(step, "ops", ())) or MULTIPLYING
        nodes = patterns.weighted(model, ops)
        layers = [one for one in known if _layer(one.kernel, nodes)]
        if not layers or step.name() in seen:
            continue
        seen.add(step.name())
        times = [one.kernel for one in sorted(layers, key=lambda one: -one.kernel.time_ns)]
        gain = sum(_saved(one, profile.ceilings, step.name()) for one in layers)
        bounds = by_bound(layers)
        guessed = profile.ceilings is not None and bounds["unknown"] < sum(bounds.values()) / 2
        if guessed and gain < _WORTH * kernel_groups.time(times):
            continue
        mostly = max(bounds, key=lambda name: bounds[name])
        yield Action(
            "quantize",
            f"{kernel_groups.named(times)}: {wording.count(len(times), 'float kernel')}, "
            f"most of their time {mostly} bound"
            if guessed
            else f"{kernel_groups.named(times)}: {wording.count(len(times), 'float kernel')}",
            f"quantize with {step.name()}; the accuracy must be measured",
            kernel_groups.names(times),
            kernel_groups.time(times),
            gain if guessed else None,
            steps=tuple(str(one) for one in (*clean(facts, backend, found).steps, step)),
        )


def _saved(verdict: KernelRoofline, ceilings: Ceilings | None, step: str) -> float:
    """Estimate what a layer gains in integers: its time falls as its roof does.

    Constants take a quarter of the bytes; other tensors keep theirs, as Q and DQ beside the layer
    may stay. Weights alone as integers leave the arithmetic in float.
    """
    kernel = verdict.kernel
    if ceilings is None or verdict.bound == "unknown" or not max(verdict.roofs):
        return 0.0
    small = tuple(
        replace(one, size=one.size // 4) if one.constant and one.dtype == "float32" else one
        for one in kernel.inputs
    )
    cold = verdict.roofs.bandwidth > 0
    then = roofs(replace(kernel, inputs=small), ceilings, cold=cold)
    float_peak, int8_peak = ceilings.flops.get(verdict.arithmetic), ceilings.flops.get("int8")
    ratio = float_peak / int8_peak if float_peak and int8_peak and step != "int8-weights" else 1.0
    after = max(then._replace(compute=then.compute * ratio))
    return kernel.time_ns * max(0.0, 1 - after / max(verdict.roofs))


def _layer(kernel: Kernel, names: frozenset[str]) -> bool:
    """Whether it computes one of these nodes of the model in float."""
    return not names.isdisjoint(kernel.sources) and arithmetic(kernel) != "int8"


def _unjudged(kernel: Kernel) -> KernelRoofline:
    return KernelRoofline(kernel, "unknown", arithmetic(kernel), Roofs(0, 0, 0, 0), 0.0, 1.0, 0.0)
