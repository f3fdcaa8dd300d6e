"""Bottlenecks as actions: what can be done about each, and the most that it may gain.

An action that names steps or a setting is one that `ortune apply`, `--on` and the search take.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortune.analysis.benchmark.bench import race_contestants
from ortune.analysis.profiling.profile import find_matrix
from ortune.analysis.profiling.roofline import (
    KernelRoofline,
    Roofs,
    compute_roofs,
    find_arithmetic,
    sum_time_by_bound,
    verdicts,
)
from ortune.core import hub, wording
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.profile import NO_STEP, Action, Ceilings, Kernel, Profile
from ortune.core.reading import read_step
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import synthetic
from ortune.data.feeds import Feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.measurement.process import query_capabilities
from ortune.search.recipe.build import build
from ortune.search.recipe.space import list_recipes, make_clean_recipe

_FEW = 3


def find_kernels(profile: Profile, nodes: Iterable[str]) -> list[Kernel]:
    """Return the kernels that stand for some of these nodes and for no other."""
    node_names = frozenset(nodes)
    kernels = (kernel for kernel in profile.kernels if kernel.sources)
    return [kernel for kernel in kernels if node_names.issuperset(kernel.sources)]


def sum_time_ns(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time_ns for kernel in kernels)


def kernel_names(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    return tuple(kernel.name for kernel in sorted(kernels, key=lambda kernel: -kernel.time_ns))


def name_top_operators(kernels: Sequence[Kernel]) -> str:
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


def preview_change(model: ir.Model, steps: Sequence[Step], last: Step) -> tuple[set[str], int]:
    """Try steps on a copy; return which nodes the last one removes and how many it adds.

    None of either where it is refused.
    """
    copy = model.clone()
    edit.inline_functions(copy)
    before: set[str] = set()
    try:
        for step in steps:
            if step == last:
                before = _list_node_names(copy)
            if isinstance(step, Transform):
                step.apply(copy)
    except Exception:  # a build would take the step back, whatever it stumbled over
        return set(), 0
    after = _list_node_names(copy)
    return before - after, len(after - before)


def list_attention_nodes(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield the nodes of every softmax between two products, with what scales and masks."""
    for node in edit.walk_nodes(model):
        if node.op_type != "Softmax" or node.domain:
            continue
        after = [use.node for out in node.outputs for use in out.uses()]
        product = next((member for member in after if member.op_type == "MatMul"), None)
        chain = _trace_back(node, "MatMul")
        if product is not None and chain:
            nodes = [*chain, node, product]
            yield frozenset(member.name for member in nodes if member.name)


def find_conv_activations(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield every convolution whose only reader is an activation, with it."""
    for node in edit.walk_nodes(model):
        if node.op_type not in _ACTIVATIONS:
            continue
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
        if source is None or source.op_type not in ("Conv", "ConvTranspose", "BatchNormalization"):
            continue
        if len(list(source.outputs[0].uses())) == 1 and source.name and node.name:
            yield frozenset({source.name, node.name})


def _trace_back(node: ir.Node, op: str) -> list[ir.Node]:
    """Follow a node's inputs back to an operator over element-wise ones; none if it is not."""
    chain: list[ir.Node] = []
    here = node
    for _ in range(_STEPS_BACK):
        sources = [value.producer() for value in here.inputs if value is not None]
        producers = [producer for producer in sources if producer is not None]
        product = next((producer for producer in producers if producer.op_type == op), None)
        if product is not None:
            return [*chain, product]
        inner = next((producer for producer in producers if producer.op_type in _BETWEEN), None)
        if inner is None:
            return []
        chain.append(inner)
        here = inner
    return []


def _list_node_names(model: ir.Model) -> set[str]:
    return {node.name for node in edit.walk_nodes(model) if node.name}


MULTIPLYING = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention"}
)
_WORTH = 0.01
"""Share of the time looked at from which a line is worth writing."""


def suggest_quantization(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> Iterator[Action]:
    """Float layers with constant weights, by the offers that the search has for this backend."""
    judged, backend_capabilities = verdicts(profile), query_capabilities(backend)
    no_roofs = Roofs(0, 0, 0, 0)
    kernel_verdicts = judged or tuple(
        KernelRoofline(kernel, "unknown", find_arithmetic(kernel), no_roofs, 0.0, 1.0, 0.0)
        for kernel in profile.kernels
    )
    recipes = list_recipes(facts, backend, backend_capabilities)
    offered = [step for recipe in recipes for step in recipe.steps]
    seen: set[str] = set()
    for step in (item for item in offered if isinstance(item, Quantizer)):
        op_types = frozenset(getattr(step, "ops", ())) or MULTIPLYING
        nodes = frozenset(
            node.name
            for node in edit.walk_nodes(model)
            if node.op_type in op_types
            and node.name
            and any(find_matrix(value) is not None for value in node.inputs[1:])
        )
        layers = [
            item
            for item in kernel_verdicts
            if not nodes.isdisjoint(item.kernel.sources) and find_arithmetic(item.kernel) != "int8"
        ]
        if not layers or step.name() in seen:
            continue
        seen.add(step.name())
        times = [item.kernel for item in sorted(layers, key=lambda item: -item.kernel.time_ns)]
        gain = sum(_estimate_gain(item, profile.ceilings, step.name()) for item in layers)
        bounds = sum_time_by_bound(layers)
        guessed = profile.ceilings is not None and bounds["unknown"] < sum(bounds.values()) / 2
        if guessed and gain < _WORTH * sum_time_ns(times):
            continue
        mostly = max(bounds, key=lambda name: bounds[name])
        title = f"{name_top_operators(times)}: {wording.format_count(len(times), 'float kernel')}"
        title += f", most of their time {mostly} bound" if guessed else ""
        exact = make_clean_recipe(facts, backend, backend_capabilities).steps
        yield Action(
            "quantize",
            title,
            f"quantize with {step.name()}; the accuracy must be measured",
            kernel_names(times),
            sum_time_ns(times),
            gain if guessed else None,
            steps=tuple(map(str, (*exact, step))),
        )


def _estimate_gain(verdict: KernelRoofline, ceilings: Ceilings | None, step: str) -> float:
    """Estimate what a layer gains in integers: its time falls as its roof does.

    Constants take a quarter of the bytes; other tensors keep theirs, as Q and DQ beside the layer
    may stay. Weights alone as integers leave the arithmetic in float.
    """
    kernel = verdict.kernel
    if ceilings is None or verdict.bound == "unknown" or not max(verdict.roofs):
        return 0.0
    small = tuple(
        replace(x, size=x.size // 4) if x.constant and x.dtype == "float32" else x
        for x in kernel.inputs
    )
    cold = verdict.roofs.bandwidth > 0
    then = compute_roofs(replace(kernel, inputs=small), ceilings, cold=cold)
    float_peak, int8_peak = ceilings.flops.get(verdict.arithmetic), ceilings.flops.get("int8")
    ratio = float_peak / int8_peak if float_peak and int8_peak and step != "int8-weights" else 1.0
    after = max(then._replace(compute=then.compute * ratio))
    return kernel.time_ns * max(0.0, 1 - after / max(verdict.roofs))


_MANY = 0.3
"""Share of a run in overhead-bound kernels from which fewer threads may be faster."""
_ADDED = {
    "cast": "casts between types",
    "copy": "copies between devices",
    "reorder": "reorders between memory layouts",
    "transpose": "transposes",
}


def list_actions(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> tuple[Action, ...]:
    """Return what may be done, the most at stake first; without ceilings nothing is estimated."""
    candidates = [
        *_suggest_fusions(profile, model, facts, backend),
        *_report_unfused(profile, model),
        *suggest_quantization(profile, model, facts, backend),
        *_report_qdq_kernels(profile, model),
        *_report_conversions(profile),
        *_suggest_single_thread(profile, backend),
        *_suggest_denormal_flush(facts, backend),
    ]
    least = _WORTH * sum(kernel.time_ns for kernel in profile.kernels)
    kept = [
        action for action in candidates if action.stake_ns >= least or action.kind == "denormals"
    ]
    return tuple(sorted(kept, key=lambda action: -action.stake_ns))


def _suggest_fusions(
    profile: Profile, model: ir.Model, facts: Facts, backend: Backend
) -> Iterator[Action]:
    """What our own rewrites would replace and the runtime has not."""
    ours = make_clean_recipe(facts, backend, query_capabilities(backend))
    raised = tuple(step for step in ours.steps if step.name() == "raise-opset")
    for step in ours.steps:
        if step in raised:
            continue
        removed, added_count = preview_change(model, (*raised, step), step)
        touched = find_kernels(profile, removed)
        if len(touched) <= added_count or not touched:
            continue
        overhead = profile.ceilings.overhead_ns if profile.ceilings else 0.0
        stake = sum_time_ns(touched) - added_count * overhead
        effect = f"{wording.format_count(len(touched), 'kernel')} that {step.name()} makes"
        yield Action(
            "fuse",
            f"{name_top_operators(touched)}: {effect} {added_count}",
            f"apply {step.name()}",
            kernel_names(touched),
            max(0.0, stake),
            steps=tuple(str(applied_step) for applied_step in (*raised, step)),
        )


def _report_unfused(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Patterns that no rewrite of ours knows."""
    for name, matches in (
        ("attention", list_attention_nodes(model)),
        ("activation behind a convolution", find_conv_activations(model)),
    ):
        kernel_groups = [find_kernels(profile, nodes) for nodes in matches]
        separate_groups = [kernels for kernels in kernel_groups if len(kernels) > 1]
        flat = list({id(kernel): kernel for group in separate_groups for kernel in group}.values())
        if not flat:
            continue
        heavy = (*MULTIPLYING, "Convolution", "FullyConnected")
        kernels = [kernel for kernel in flat if not any(op in kernel.op_type for op in heavy)]
        yield Action(
            "fuse",
            f"{name}, {len(separate_groups)} times as separate kernels "
            f"({name_top_operators(flat)})",
            f"the runtime did not fuse it here; {NO_STEP}",
            kernel_names(flat),
            sum_time_ns(kernels),
        )


def _report_qdq_kernels(profile: Profile, model: ir.Model) -> Iterator[Action]:
    """Q/DQ nodes that run as kernels of their own."""
    qdq_kernels = [kernel for kernel in profile.kernels if kernel.kind == "quantize"]
    if not qdq_kernels:
        return
    weights = [kernel for kernel in qdq_kernels if kernel.inputs and kernel.inputs[0].constant]
    if weights:
        yield Action(
            "added",
            f"weights dequantized in every run by {len(weights)} DequantizeLinear",
            "dequantize them once, when the model loads",
            kernel_names(weights),
            sum_time_ns(weights),
            steps=("dequantize-at-load",),
        )
    activation_kernels = [qdq_kernel for qdq_kernel in qdq_kernels if qdq_kernel not in weights]
    # The operators that Q/DQ nodes stand beside: readers of a DQ, writers to a Q.
    node_names = {name for qdq_kernel in activation_kernels for name in qdq_kernel.sources}
    beside = Counter[str]()
    for node in edit.walk_nodes(model):
        if node.name not in node_names:
            continue
        if node.op_type == "QuantizeLinear":
            source = node.inputs[0].producer() if node.inputs[0] else None
            beside.update([source.op_type] if source else ["input"])
        else:
            readers = [use.node.op_type for out in node.outputs for use in out.uses()]
            beside.update(readers or ["output"])
    where = ", ".join(f"{op} ({count})" for op, count in beside.most_common(_FEW))
    if activation_kernels:
        yield Action(
            "added",
            f"{len(activation_kernels)} Q/DQ kernels left"
            + (f", beside {where}" if where else ""),
            f"these operators have no integer kernel here, or their pairs do not match; {NO_STEP}",
            kernel_names(activation_kernels),
            sum_time_ns(activation_kernels),
        )


def _report_conversions(profile: Profile) -> Iterator[Action]:
    for kind, words in _ADDED.items():
        matches = [kernel for kernel in profile.kernels if kernel.kind == kind]
        if matches:
            model_count = sum(bool(kernel.sources) for kernel in matches)
            whose = "all added by the runtime"
            if model_count:
                whose = f"{model_count} of them the model's own"
            yield Action(
                "added",
                f"{len(matches)} {words}, {whose}",
                f"removing them gains at most their time; {NO_STEP}",
                kernel_names(matches),
                sum_time_ns(matches),
            )


def _suggest_single_thread(profile: Profile, backend: Backend) -> Iterator[Action]:
    """Kernels that only start are not faster on several threads."""
    judged = verdicts(profile)
    spent = sum_time_by_bound(judged)["overhead"]
    if profile.ceilings is None or profile.ceilings.threads < 2 or backend.threads == 1:
        return
    if spent >= _MANY * sum(verdict.kernel.time_ns for verdict in judged):
        small = [verdict.kernel for verdict in judged if verdict.bound == "overhead"]
        stake = sum(verdict.gain_ns for verdict in judged if verdict.bound == "overhead")
        yield Action(
            "threads",
            f"overhead bound: {len(small)} of {wording.format_count(len(judged), 'kernel')}",
            "one thread avoids waking the others",
            kernel_names(small),
            stake,
            backend=str(replace(backend, threads=1)),
        )


def _suggest_denormal_flush(facts: Facts, backend: Backend) -> Iterator[Action]:
    flushed = [
        variant
        for group in backend.coordinates(facts, query_capabilities(backend)).values()
        for variant in group
        if getattr(variant, "flush_denormals", False)
        and not getattr(backend, "flush_denormals", True)
    ]
    if facts.denormals and flushed:
        yield Action(
            "denormals",
            f"{facts.denormals:.2g} of the weights are denormal: slow on many CPUs",
            "flush them to 0; this changes values below 1.2e-38",
            backend=str(flushed[0]),
        )


_TRIED_S = 20.0
"""Time for timing all of them together; building comes on top."""
_SAMPLES = 16
"""Made-up samples that a quantizer calibrates on: enough for speed, never for accuracy."""


def suggest(profile: Profile) -> tuple[Action, ...]:
    """Suggest changes for the bottlenecks of a profile, from the profiled model file.

    Raises:
        OrtuneError: The file is gone or cannot be read.
    """
    model = file.load(Path(profile.model))
    edit.inline_functions(model)
    names.make_names_unique(model)
    source_facts = model_facts.read_facts(model, read=True)
    return list_actions(profile, model, source_facts, parse_plugin(Backend, profile.backend))


def evaluate_suggestions(
    profile: Profile,
    actions: Sequence[Action],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    sink: Sink = ignore_event,
) -> tuple[Action, ...]:
    """Apply each action that names steps or a setting, and time it against the model as it is.

    Args:
        profile: Of the model; its batch is timed.
        actions: The actions; those that name nothing to do come back as they are.
        data: Samples; made up when None, which is enough for time and not for accuracy.

    Raises:
        OrtuneError: The model or the data cannot be used.
    """
    source, origin = Path(profile.model), parse_plugin(Backend, profile.backend)
    with open_temporary_folder() as folder:
        takes, out = model_facts.read_facts(file.load(source)).inputs, folder / "data"
        feeds = synthetic.load_or_generate_feeds(
            data,
            takes,
            out,
            shapes=shapes,
            ranges=ranges,
            count=_SAMPLES,
            settings=hub.find_folder(source),
        )
        done, built = list(actions), {}
        for place, action in enumerate(actions):
            if not (action.steps or action.backend):
                continue
            sink(Progress(f"building: {action.does}", place, len(actions)))
            try:
                out = folder / f"{place}.onnx"
                built[place] = _apply_action(source, action, feeds, out, origin)
            except OrtuneError as error:
                done[place] = replace(action, note=f"not built: {error.what}")
        if not built:
            return tuple(done)
        answer = race_contestants(
            [(source, origin), *built.values()],
            data=data,
            shapes=shapes,
            ranges=ranges,
            batch=profile.batch,
            time=_TRIED_S,
            sink=sink,
        )
    for place, ratio, row in zip(built, answer.ratios[1:], answer.rows[1:], strict=True):
        if ratio:
            done[place] = replace(actions[place], measured=ratio)
        else:
            done[place] = replace(actions[place], note=f"does not run: {row['error']}")
    return tuple(done)


def _apply_action(
    source: Path, action: Action, sample_feeds: Feeds, out: Path, origin: Backend
) -> tuple[Path, Backend]:
    """Return the model with the action's steps, and the backend with its setting."""
    backend = parse_plugin(Backend, action.backend) if action.backend else origin
    if not action.steps:
        return source, backend
    recipe = Recipe("try", tuple(map(read_step, action.steps)))
    feeds = replace(sample_feeds, synthetic=False)
    result = build(source, recipe, out, feeds=feeds, custom_ops=origin.custom_ops)
    if not result.changed:
        raise OrtuneError(f"{action.does} changes nothing", fix="leave it out")
    return result.path, backend
