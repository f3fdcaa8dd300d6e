"""Bottlenecks as actions: what can be done about each, and the most that it may gain.

An action that names steps or a setting is one that `ortune apply`, `--on` and the search take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ortune.analysis.profiling import kernel_groups, patterns
from ortune.analysis.profiling.quantization_gain import MULTIPLYING, quantizations
from ortune.analysis.profiling.roofline import by_bound, verdicts
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.profile import NO_STEP, Action, Kernel, Profile
from ortune.measurement.capabilities import capabilities
from ortune.recipe.space import clean

_WORTH = 0.01
"""Share of a run from which a bottleneck is worth a line."""
_MANY = 0.3
"""Share of a run in overhead-bound kernels from which fewer threads may be faster."""
_FEW = 3
_ADDED = {
    "cast": "casts between types",
    "copy": "copies between devices",
    "reorder": "reorders between memory layouts",
    "transpose": "transposes",
}


def actions(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> tuple[Action, ...]:
    """Return what may be done about a profile's bottlenecks, the most at stake first.

    Args:
        profile: With ceilings, or without: then nothing is estimated.
        model: The source model; left alone.
    """
    found = [
        *_fusions(profile, model, facts, backend),
        *_spelled_out(profile, model),
        *quantizations(profile, model, facts, backend),
        *_pairs(profile, model),
        *_added(profile),
        *_threads(profile, backend),
        *_denormals(facts, backend),
    ]
    least = _WORTH * sum(kernel.time_ns for kernel in profile.kernels)
    kept = [one for one in found if one.stake_ns >= least or one.kind == "denormals"]
    return tuple(sorted(kept, key=lambda one: -one.stake_ns))


def _fusions(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> Iterator[Action]:
    """What our own rewrites would replace and the runtime has not."""
    ours = clean(facts, backend, capabilities(backend))
    raised = tuple(step for step in ours.steps if step.name() == "raise-opset")
    for step in ours.steps:
        if step in raised:
            continue
        change = patterns.change(model, (*raised, step), step)
        touched = kernel_groups.standing_for(profile, change.removed)
        if len(touched) <= change.added or not touched:
            continue
        overhead = profile.ceilings.overhead_ns if profile.ceilings else 0.0
        stake = kernel_groups.time(touched) - change.added * overhead
        made = f"{wording.count(len(touched), 'kernel')} that {step.name()} makes {change.added}"
        yield Action(
            "fuse",
            f"{kernel_groups.named(touched)}: {made}",
            f"apply {step.name()}",
            kernel_groups.names(touched),
            max(0.0, stake),
            steps=tuple(str(one) for one in (*raised, step)),
        )


def _spelled_out(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Patterns that no rewrite of ours knows."""
    for name, found in (
        ("attention", patterns.attention(model)),
        ("activation behind a convolution", patterns.activations(model)),
    ):
        every = [kernel_groups.standing_for(profile, nodes) for nodes in found]
        left = [kernels for kernels in every if len(kernels) > 1]
        flat = list({id(kernel): kernel for group in left for kernel in group}.values())
        if not flat:
            continue
        kernels = [one for one in flat if not _multiplies(one)]
        yield Action(
            "fuse",
            f"{name}, {len(left)} times as separate kernels ({kernel_groups.named(flat)})",
            f"the runtime did not fuse it here; {NO_STEP}",
            kernel_groups.names(flat),
            kernel_groups.time(kernels),
        )


def _pairs(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Q/DQ nodes that run as kernels of their own."""
    left = [kernel for kernel in profile.kernels if kernel.kind == "quantize"]
    if not left:
        return
    weights = [one for one in left if one.inputs and one.inputs[0].constant]
    if weights:
        yield Action(
            "added",
            f"weights widened in every run by {len(weights)} DequantizeLinear",
            "widen them once, when the model loads",
            kernel_groups.names(weights),
            kernel_groups.time(weights),
            steps=("dequantize-at-load",),
        )
    others = [one for one in left if one not in weights]
    beside = patterns.neighbours(model, [name for one in others for name in one.sources])
    where = ", ".join(f"{op} ({count})" for op, count in beside.most_common(_FEW))
    if others:
        yield Action(
            "added",
            f"{len(others)} Q/DQ kernels left" + (f", beside {where}" if where else ""),
            f"these operators have no integer kernel here, or their pairs do not match; {NO_STEP}",
            kernel_groups.names(others),
            kernel_groups.time(others),
        )


def _added(profile: Profile) -> Iterator[Action]:
    for kind, words in _ADDED.items():
        found = [kernel for kernel in profile.kernels if kernel.kind == kind]
        if found:
            own = sum(bool(kernel.sources) for kernel in found)
            whose = f"{own} of them the model's own" if own else "all added by the runtime"
            yield Action(
                "added",
                f"{len(found)} {words}, {whose}",
                f"removing them gains at most their time; {NO_STEP}",
                kernel_groups.names(found),
                kernel_groups.time(found),
            )


def _threads(profile: Profile, backend: Backend) -> Iterator[Action]:
    """Kernels that only start are not faster on several threads."""
    judged = verdicts(profile)
    spent = by_bound(judged)["overhead"]
    if profile.ceilings is None or profile.ceilings.threads < 2 or backend.threads == 1:
        return
    if spent >= _MANY * sum(one.kernel.time_ns for one in judged):
        small = [one.kernel for one in judged if one.bound == "overhead"]
        stake = sum(one.gain_ns for one in judged if one.bound == "overhead")
        yield Action(
            "threads",
            f"overhead bound: {len(small)} of {wording.count(len(judged), 'kernel')}",
            "one thread avoids waking the others",
            kernel_groups.names(small),
            stake,
            backend=str(replace(backend, threads=1)),
        )


def _denormals(facts: Facts, backend: Backend) -> Iterator[Action]:
    flushed = [
        one
        for group in backend.coordinates(facts, capabilities(backend)).values()
        for one in group
        if getattr(one, "flush_denormals", False) and not getattr(backend, "flush_denormals", True)
    ]
    if facts.denormals and flushed:
        yield Action(
            "denormals",
            f"{facts.denormals:.2g} of the weights are denormal: slow on many CPUs",
            "take them for 0; this changes numbers below 1.2e-38",
            backend=str(flushed[0]),
        )


def _multiplies(kernel: Kernel) -> bool:
    return any(op in kernel.op_type for op in (*MULTIPLYING, "Convolution", "FullyConnected"))
