"""Bottlenecks as actions: what can be done about each, and the most that it may gain.

An action that names steps or a setting is one that `ortune apply`, `--on` and the search take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx_ir as ir

from ortune.analysis.benchmark.bench import race
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
from ortune.core.errors import OrtuneError
from ortune.core.event import Progress, Sink, silent
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse
from ortune.core.profile import NO_STEP, Action, Ceilings, Kernel, Profile
from ortune.core.reading import step as read_step
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.data import given
from ortune.data.feeds import Feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.measurement.process import capabilities
from ortune.search.recipe.build import build
from ortune.search.recipe.space import clean, recipes

_FEW = 3


def standing_for(profile: Profile, nodes: Iterable[str]) -> list[Kernel]:
    """Return the kernels that stand for some of these nodes and for no other."""
    wanted = frozenset(nodes)
    return [one for one in profile.kernels if one.sources and wanted.issuperset(one.sources)]


def time(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time_ns for kernel in kernels)


def kernel_names(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    return tuple(one.name for one in sorted(kernels, key=lambda one: -one.time_ns))


def named(kernels: Sequence[Kernel]) -> str:
    """Name the operators that take most of the time."""
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel.op_type] += int(kernel.time_ns)
    most = [op for op, _ in times.most_common(_FEW)]
    return ", ".join(most) + (", ..." if len(times) > _FEW else "")


_ACTIVATIONS = frozenset(
    ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish", "Elu", "Mish")
)
_BETWEEN = frozenset(("Mul", "Div", "Add", "Where", "Cast", "Transpose", "Reshape", "Sub"))
_STEPS_BACK = 6
"""Scaling, masking and casting between the scores' product and the softmax."""


@dataclass(frozen=True)
class Change:
    """What a rewrite would do.

    Attributes:
        removed: Names of the nodes that would go.
        added: Number of nodes that would come.
    """

    removed: frozenset[str]
    added: int


def change(model: ir.Model, steps: Sequence[Step], last: Step) -> Change:
    """Try steps on a copy and return what the last one changes; nothing where it is refused."""
    copy = model.clone()
    edit.inline(copy)
    before: set[str] = set()
    try:
        for step in steps:
            if step == last:
                before = _names(copy)
            if isinstance(step, Transform):
                step.apply(copy)
    except Exception:  # a build would take the step back, whatever it stumbled over
        return Change(frozenset(), 0)
    after = _names(copy)
    return Change(frozenset(before - after), len(after - before))


def weighted(model: ir.Model, ops: Iterable[str]) -> frozenset[str]:
    """Return the names of the nodes of some operators that have a constant matrix."""
    wanted = frozenset(ops)
    return frozenset(
        node.name
        for node in edit.every_node(model)
        if node.op_type in wanted and node.name and any(map(_matrix, node.inputs[1:]))
    )


def _matrix(value: ir.Value | None) -> bool:
    """Whether a value is constant and of two dimensions or more; also behind a DQ."""
    if value is None:
        return False
    source = value.producer()
    if source is not None and source.op_type == "DequantizeLinear":
        value = source.inputs[0]
    tensor = None if value is None else value.const_value
    return tensor is not None and len(tensor.shape) >= 2


def attention(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield the nodes of every softmax between two products, with what scales and masks."""
    for node in edit.every_node(model):
        if node.op_type != "Softmax" or node.domain:
            continue
        after = [use.node for out in node.outputs for use in out.uses()]
        product = next((one for one in after if one.op_type == "MatMul"), None)
        chain = _back_to(node, "MatMul")
        if product is not None and chain:
            nodes = [*chain, node, product]
            yield frozenset(one.name for one in nodes if one.name)


def activations(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield every convolution whose only reader is an activation, with it."""
    for node in edit.every_node(model):
        if node.op_type not in _ACTIVATIONS:
            continue
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
        if source is None or source.op_type not in ("Conv", "ConvTranspose", "BatchNormalization"):
            continue
        if len(list(source.outputs[0].uses())) == 1 and source.name and node.name:
            yield frozenset({source.name, node.name})


def neighbours(model: ir.Model, nodes: Iterable[str]) -> Counter[str]:
    """Count the operators that Q/DQ nodes stand beside: readers of a DQ, writers to a Q."""
    wanted, found = frozenset(nodes), Counter[str]()
    for node in edit.every_node(model):
        if node.name not in wanted:
            continue
        if node.op_type == "QuantizeLinear":
            source = node.inputs[0].producer() if node.inputs[0] else None
            found.update([source.op_type] if source else ["input"])
        else:
            readers = [use.node.op_type for out in node.outputs for use in out.uses()]
            found.update(readers or ["output"])
    return found


def _back_to(node: ir.Node, op: str) -> list[ir.Node]:
    """Follow a node's inputs back to an operator over element-wise ones; none if it is not."""
    chain: list[ir.Node] = []
    here = node
    for _ in range(_STEPS_BACK):
        sources = [value.producer() for value in here.inputs if value is not None]
        known = [one for one in sources if one is not None]
        product = next((one for one in known if one.op_type == op), None)
        if product is not None:
            return [*chain, product]
        inner = next((one for one in known if one.op_type in _BETWEEN), None)
        if inner is None:
            return []
        chain.append(inner)
        here = inner
    return []


def _names(model: ir.Model) -> set[str]:
    return {node.name for node in edit.every_node(model) if node.name}


MULTIPLYING = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention"}
)
_WORTH = 0.01
"""Share of the time looked at from which a line is worth writing."""


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
        nodes = weighted(model, ops)
        layers = [one for one in known if _layer(one.kernel, nodes)]
        if not layers or step.name() in seen:
            continue
        seen.add(step.name())
        times = [one.kernel for one in sorted(layers, key=lambda one: -one.kernel.time_ns)]
        gain = sum(_saved(one, profile.ceilings, step.name()) for one in layers)
        bounds = by_bound(layers)
        guessed = profile.ceilings is not None and bounds["unknown"] < sum(bounds.values()) / 2
        if guessed and gain < _WORTH * time(times):
            continue
        mostly = max(bounds, key=lambda name: bounds[name])
        yield Action(
            "quantize",
            f"{named(times)}: {wording.count(len(times), 'float kernel')}, "
            f"most of their time {mostly} bound"
            if guessed
            else f"{named(times)}: {wording.count(len(times), 'float kernel')}",
            f"quantize with {step.name()}; the accuracy must be measured",
            kernel_names(times),
            time(times),
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


_MANY = 0.3
"""Share of a run in overhead-bound kernels from which fewer threads may be faster."""
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
        effect = change(model, (*raised, step), step)
        touched = standing_for(profile, effect.removed)
        if len(touched) <= effect.added or not touched:
            continue
        overhead = profile.ceilings.overhead_ns if profile.ceilings else 0.0
        stake = time(touched) - effect.added * overhead
        made = f"{wording.count(len(touched), 'kernel')} that {step.name()} makes {effect.added}"
        yield Action(
            "fuse",
            f"{named(touched)}: {made}",
            f"apply {step.name()}",
            kernel_names(touched),
            max(0.0, stake),
            steps=tuple(str(one) for one in (*raised, step)),
        )


def _spelled_out(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Patterns that no rewrite of ours knows."""
    for name, found in (
        ("attention", attention(model)),
        ("activation behind a convolution", activations(model)),
    ):
        every = [standing_for(profile, nodes) for nodes in found]
        left = [kernels for kernels in every if len(kernels) > 1]
        flat = list({id(kernel): kernel for group in left for kernel in group}.values())
        if not flat:
            continue
        kernels = [one for one in flat if not _multiplies(one)]
        yield Action(
            "fuse",
            f"{name}, {len(left)} times as separate kernels ({named(flat)})",
            f"the runtime did not fuse it here; {NO_STEP}",
            kernel_names(flat),
            time(kernels),
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
            kernel_names(weights),
            time(weights),
            steps=("dequantize-at-load",),
        )
    others = [one for one in left if one not in weights]
    beside = neighbours(model, [name for one in others for name in one.sources])
    where = ", ".join(f"{op} ({count})" for op, count in beside.most_common(_FEW))
    if others:
        yield Action(
            "added",
            f"{len(others)} Q/DQ kernels left" + (f", beside {where}" if where else ""),
            f"these operators have no integer kernel here, or their pairs do not match; {NO_STEP}",
            kernel_names(others),
            time(others),
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
                kernel_names(found),
                time(found),
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
            kernel_names(small),
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


_SAMPLES = 16
"""Made-up samples that a quantizer calibrates on: enough for speed, never for accuracy."""


def suggest(profile: Profile) -> tuple[Action, ...]:
    """Return the actions for a profile, from the model file that it was taken of.

    Raises:
        OrtuneError: The file is gone or cannot be read.
    """
    model = file.load(Path(profile.model))
    edit.inline(model)
    names.unique(model)
    known = model_facts.facts(model, read=True)
    return actions(profile, model, known, parse(Backend, profile.backend))


def evaluate_suggestions(
    profile: Profile,
    every: Sequence[Action],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seconds: float = 20,
    sink: Sink = silent,
) -> tuple[Action, ...]:
    """Do each action that names steps or a setting, time all against the model as it is.

    Args:
        profile: Of the model; its batch is timed.
        every: The actions; those that name nothing to do come back as they are.
        data: Samples; made up when None, which is enough for time and not for accuracy.
        shapes: Shapes of made-up inputs.
        ranges: Values of made-up inputs.
        seconds: Time for timing, all together; building comes on top.
        sink: Receives notes.

    Raises:
        OrtuneError: The model or the data cannot be used.
    """
    source, origin = Path(profile.model), parse(Backend, profile.backend)
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        takes, out = model_facts.facts(file.load(source)).inputs, folder / "data"
        found = given.samples(data, takes, out, shapes=shapes, ranges=ranges, count=_SAMPLES)
        done, built = list(every), {}
        for place, action in enumerate(every):
            if not (action.steps or action.backend):
                continue
            sink(Progress(f"building: {action.does}", place, len(every)))
            try:
                out = folder / f"{place}.onnx"
                built[place] = _built(source, action, found, out, origin)
            except OrtuneError as error:
                done[place] = replace(action, note=f"not built: {error.what}")
        if not built:
            return tuple(done)
        answer = race(
            [(source, origin), *built.values()],
            data=data,
            shapes=shapes,
            ranges=ranges,
            batch=profile.batch,
            seconds=seconds,
            sink=sink,
        )
    for place, ratio, row in zip(built, answer.ratios[1:], answer.rows[1:], strict=True):
        if ratio:
            done[place] = replace(every[place], measured=ratio)
        else:
            done[place] = replace(every[place], note=f"does not run: {row['error']}")
    return tuple(done)


def _built(
    source: Path, action: Action, found: Feeds, out: Path, origin: Backend
) -> tuple[Path, Backend]:
    """Return the model with the action's steps, and the backend with its setting."""
    backend = parse(Backend, action.backend) if action.backend else origin
    if not action.steps:
        return source, backend
    recipe = Recipe("try", tuple(map(read_step, action.steps)))
    feeds = replace(found, synthetic=False)
    made = build(source, recipe, out, feeds=feeds, custom_ops=origin.custom_ops)
    if not made.changed:
        raise OrtuneError(f"{action.does} changes nothing", fix="leave it out")
    return made.path, backend
