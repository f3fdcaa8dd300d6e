"""Bottlenecks as actions: what could be done about them, for how much at most, in whose words.

An action that names steps or a setting is one that `ortune apply`, `--on` and the search take;
`in_space` says whether the search tries it by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.profile import Ceilings, Kernel, Profile
from ortune.core.step import Quantizer, Step
from ortune.core.trial import Interval
from ortune.core.workload import Workload
from ortune.study import patterns
from ortune.study.roofline import Roofs, Verdict, arithmetic, by_bound, roofs, verdicts
from ortune.study.space import Target, clean, recipes

if TYPE_CHECKING:
    import onnx_ir as ir

Kind: TypeAlias = Literal["fuse", "quantize", "added", "denormals", "threads"]

NO_STEP = "no transform yet"
_WORTH = 0.01
"""Share of a run from which a bottleneck is worth a line."""
_MANY = 0.3
"""Share of a run in overhead-bound kernels from which fewer threads may be faster."""
_FEW = 3
_MULTIPLYING = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention"}
)
_ADDED = {
    "cast": "casts between types",
    "copy": "copies between devices",
    "reorder": "reorders between memory layouts",
    "transpose": "transposes",
}


@dataclass(frozen=True)
class Action:
    """One thing to do about a bottleneck.

    Attributes:
        kind: What it is about.
        title: The bottleneck.
        advice: What to do, or why nothing can be done yet.
        kernels: Names of the kernels at stake, the longest first.
        stake_ns: Time of a run that it can gain at most; 0 where the profile cannot tell.
        estimate_ns: Time that it would gain by the ceilings; None where nothing is estimated.
        steps: Spelling of the steps, in order; none where no step is known or none is needed.
        backend: Spelling of the backend with the setting; empty where it stays.
        measured: Latency with it over latency without, once it was tried.
        note: What became of trying it.
    """

    kind: Kind
    title: str
    advice: str
    kernels: tuple[str, ...] = ()
    stake_ns: float = 0.0
    estimate_ns: float | None = None
    steps: tuple[str, ...] = ()
    backend: str = ""
    measured: Interval | None = None
    note: str = ""

    @property
    def does(self) -> str:
        """Return what to hand to `apply` or `--on`, or that there is nothing yet."""
        return " ".join(self.steps) or self.backend or NO_STEP


def actions(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> tuple[Action, ...]:
    """Return what may be done about a profile's bottlenecks, the most at stake first.

    Args:
        profile: With ceilings, or without: then nothing is estimated.
        model: The source model; left alone.
        facts: Of the model.
        backend: That the profile was taken on.
    """
    found = [
        *_fusions(profile, model, facts),
        *_spelled_out(profile, model),
        *_quantizations(profile, model, facts, backend),
        *_pairs(profile, model),
        *_added(profile),
        *_threads(profile, backend),
        *_denormals(facts, backend),
    ]
    least = _WORTH * sum(kernel.time_ns for kernel in profile.kernels)
    kept = [one for one in found if one.stake_ns >= least or one.kind == "denormals"]
    return tuple(sorted(kept, key=lambda one: -one.stake_ns))


def in_space(action: Action, facts: Facts, backend: Backend, workload: Workload) -> bool:
    """Say whether the search has a plan with the action's steps, or tries its setting."""
    target = Target(backend)
    if action.steps:
        offered = (
            one for side in target.variants(facts, workload) for one in recipes(facts, side)
        )
        wanted = set(action.steps)
        return any(wanted <= {str(step) for step in recipe.steps} for recipe in offered)
    tried = (one for group in backend.coordinates(facts).values() for one in group)
    return bool(action.backend) and action.backend in {str(one) for one in tried}


def _fusions(profile: Profile, model: ir.Model, facts: Facts) -> Iterator[Action]:
    """What our own rewrites would replace and the runtime has not."""
    ours = clean(facts)
    raised = tuple(step for step in ours.steps if step.name() == "raise-opset")
    for step in ours.steps:
        if step in raised:
            continue
        change = patterns.change(model, (*raised, step), step)
        touched = _of(profile, change.removed)
        if len(touched) <= change.added or not touched:
            continue
        overhead = profile.ceilings.overhead_ns if profile.ceilings else 0.0
        stake = _time(touched) - change.added * overhead
        yield Action(
            "fuse",
            f"{_named(touched)}: {len(touched)} kernels that {step.name()} makes {change.added}",
            f"apply {step.name()}",
            _names(touched),
            max(0.0, stake),
            steps=tuple(str(one) for one in (*raised, step)),
        )


def _spelled_out(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Patterns that no rewrite of ours knows."""
    for name, groups in (
        ("attention", patterns.attention(model)),
        ("activation behind a convolution", patterns.activations(model)),
    ):
        left = [found for group in groups if len(found := _of(profile, group)) > 1]
        flat = list({id(kernel): kernel for group in left for kernel in group}.values())
        if not flat:
            continue
        kernels = [one for one in flat if not _multiplies(one)]
        yield Action(
            "fuse",
            f"{name}, {len(left)} times as separate kernels ({_named(flat)})",
            f"the runtime did not fuse it here; {NO_STEP}",
            _names(flat),
            _time(kernels),
        )


def _quantizations(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> Iterator[Action]:
    """Float layers with constant weights, by the offers that the search has for this backend."""
    judged = verdicts(profile)
    known = judged or tuple(_unjudged(kernel) for kernel in profile.kernels)
    offered = [step for recipe in recipes(facts, backend) for step in recipe.steps]
    seen: set[str] = set()
    for step in (one for one in offered if isinstance(one, Quantizer)):
        ops = frozenset(getattr(step, "ops", ())) or _MULTIPLYING
        names = patterns.weighted(model, ops)
        layers = [one for one in known if _layer(one.kernel, names)]
        if not layers or step.name() in seen:
            continue
        seen.add(step.name())
        times = [one.kernel for one in sorted(layers, key=lambda one: -one.kernel.time_ns)]
        gain = sum(_saved(one, profile.ceilings, step.name()) for one in layers)
        bounds = by_bound(layers)
        guessed = profile.ceilings is not None and bounds["unknown"] < sum(bounds.values()) / 2
        if guessed and gain < _WORTH * _time(times):
            continue
        mostly = max(bounds, key=lambda name: bounds[name])
        yield Action(
            "quantize",
            f"{_named(times)}: {len(times)} float kernels, most of their time {mostly} bound"
            if guessed
            else f"{_named(times)}: {len(times)} float kernels",
            f"quantize with {step.name()}; the accuracy must be measured",
            _names(times),
            _time(times),
            gain if guessed else None,
            steps=tuple(str(one) for one in (*_before(facts), step)),
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
            _names(weights),
            _time(weights),
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
            _names(others),
            _time(others),
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
                _names(found),
                _time(found),
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
            f"{len(small)} kernels of {len(judged)} are overhead bound",
            "one thread spares waking the others",
            _names(small),
            stake,
            backend=str(replace(backend, threads=1)),
        )


def _denormals(facts: Facts, backend: Backend) -> Iterator[Action]:
    flushed = [
        one
        for group in backend.coordinates(facts).values()
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


def _before(facts: Facts) -> Sequence[Step]:
    return clean(facts).steps


def _saved(verdict: Verdict, ceilings: Ceilings | None, step: str) -> float:
    """Estimate what a layer gains in integers: its time falls as its roof does.

    Constants take a quarter of the bytes; other tensors keep theirs, as Q and DQ beside the layer
    may stay. Weights alone as integers leave the arithmetic in float.
    """
    kernel = verdict.kernel
    if ceilings is None or verdict.bound == "unknown" or not verdict.roofs.ideal_ns:
        return 0.0
    small = tuple(
        replace(one, size=one.size // 4) if one.constant and one.dtype == "float32" else one
        for one in kernel.inputs
    )
    cold = verdict.roofs.bandwidth > 0
    then = roofs(replace(kernel, inputs=small), ceilings, cold=cold)
    float_peak, int8_peak = ceilings.flops.get(verdict.arithmetic), ceilings.flops.get("int8")
    ratio = float_peak / int8_peak if float_peak and int8_peak and step != "int8-weights" else 1.0
    after = max(then.compute * ratio, then.bandwidth, then.cache, then.overhead)
    return kernel.time_ns * max(0.0, 1 - after / verdict.roofs.ideal_ns)


def _layer(kernel: Kernel, names: frozenset[str]) -> bool:
    """Whether it computes one of these nodes of the model in float."""
    return not names.isdisjoint(kernel.sources) and arithmetic(kernel) != "int8"


def _multiplies(kernel: Kernel) -> bool:
    return any(op in kernel.op_type for op in (*_MULTIPLYING, "Convolution", "FullyConnected"))


def _unjudged(kernel: Kernel) -> Verdict:
    return Verdict(kernel, "unknown", arithmetic(kernel), Roofs(0, 0, 0, 0), 0.0, 1.0, 0.0)


def _of(profile: Profile, nodes: Iterable[str]) -> list[Kernel]:
    """Return the kernels that stand for some of these nodes and for no other."""
    wanted = frozenset(nodes)
    return [one for one in profile.kernels if one.sources and wanted.issuperset(one.sources)]


def _time(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time_ns for kernel in kernels)


def _names(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    return tuple(one.name for one in sorted(kernels, key=lambda one: -one.time_ns))


def _named(kernels: Sequence[Kernel]) -> str:
    """Name the operators that take most of the time."""
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel.op_type] += int(kernel.time_ns)
    most = [op for op, _ in times.most_common(_FEW)]
    return ", ".join(most) + (", ..." if len(times) > _FEW else "")
