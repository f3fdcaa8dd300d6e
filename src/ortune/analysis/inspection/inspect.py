"""What a model is made of, what is odd about it, and who would run it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from ortune.analysis.inspection.requests import DiffRequest, Inspect
from ortune.analysis.profiling.profile import load_labelled_model
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Progress, ignore_event
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse_list
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.session import IntegerUse
from ortune.core.step import Transform
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.synthetic import load_or_generate_feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.analysis import node_costs
from ortune.graph.analysis.dataflow import Origin, divide_into_regions
from ortune.graph.analysis.facts import weight_values
from ortune.graph.analysis.precision import Saturable, list_saturable_layers
from ortune.graph.diff import compare
from ortune.graph.diff.result import Diff
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.graph.ir.edit import list_inputs, type_name
from ortune.graph.lint import gpu
from ortune.graph.lint.rules import Finding, lint_model, make_finding, sort_findings
from ortune.graph.mapping.nodes import count_integer_layers
from ortune.graph.shapes.infer import infer_copy
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, query_capabilities
from ortune.measurement.timing.operators import record_kernels
from ortune.measurement.timing.turns import wait_until_ready
from ortune.quantizers.drop_pairs import DropPairs
from ortune.search.recipe.built import Material
from ortune.search.recipe.editing import EditSession
from ortune.search.recipe.space import make_clean_recipe

_TIMEOUT_S = 600
_RECORDED_S = 10.0
"""What recording a few runs of a file with integers may take, at most."""


@dataclass(frozen=True)
class NodePlacement:
    """A backend's answer for a model."""

    backend: str
    # Provider -> names of the model's nodes that it takes; constants are left out.
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Provider -> nodes that the runtime adds, such as casts.
    added: Mapping[str, int] = field(default_factory=dict)
    # Nodes that no provider names: the runtime takes them apart, or does without them.
    left: tuple[str, ...] = ()
    # Tensors that one provider makes and another reads: each is copied in every run, and no CUDA
    # graph is recorded over it. Shapes, which stay on the CPU, are left out.
    copied: tuple[str, ...] = ()
    # Which layers of a Q/DQ file ran in integers there, in a few runs of made-up samples; None of
    # other files, and where the runtime records nothing.
    integers: IntegerUse | None = None
    problem: str = ""  # why it does not take the model, or cannot be asked; empty when it answered
    fix: str = ""


def query_placement(
    path: Path, backend: Backend, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> NodePlacement:
    """Load the model in a worker and ask; whatever goes wrong is the answer.

    Args:
        shapes: Of made-up samples, on which a file with integers is run.

    Raises:
        BadModel: The file cannot be read.
    """
    try:
        reason = query_capabilities(backend).missing
    except OrtuneError as error:
        return NodePlacement(str(backend), problem=error.what, fix=error.fix)
    if reason is not None:
        return NodePlacement(str(backend), problem="it cannot run here", fix=reason)
    with open_temporary_folder() as name:
        model, source, _ = load_labelled_model(path, Path(name))
        job = WorkerJob({MAIN: source}, backend, {}, Path(name).resolve() / "worker")
        try:
            with Worker(job, timeout_s=_TIMEOUT_S) as worker:
                answer = worker.ask("takes")["takes"]
        except WorkerFailed as error:
            return NodePlacement(str(backend), problem=error.failure.reason, fix=error.failure.fix)
        integers = _count_integers(model, job, shapes)
    return replace(build_placement(str(backend), model, answer), integers=integers)


def _count_integers(
    model: ir.Model, job: WorkerJob, shapes: Mapping[str, tuple[int, ...]] | None
) -> IntegerUse | None:
    """Run a file with integers a few times and say which layers used them; None if it cannot."""
    if not any(node.op_type == "DequantizeLinear" for node in model.graph.all_nodes()):
        return None
    folder = job.out / "samples"
    try:
        made_up = load_or_generate_feeds(None, list_inputs(model), folder, shapes=shapes)
        with Worker(replace(job, feeds={MAIN: made_up.stream}), timeout_s=_TIMEOUT_S) as worker:
            started = wait_until_ready(worker)
            times = {"load_ns": started.load_ns, "run_ns": started.first_ns}
            recorded = record_kernels(worker, folder, seconds=_RECORDED_S, **times)
    except (OrtuneError, WorkerFailed):
        return None
    return count_integer_layers(model, recorded)


def build_placement(
    backend: str, model: ir.Model, answer: Mapping[str, list[str]]
) -> NodePlacement:
    """Separate the model's own nodes from those that the runtime added."""
    model_nodes = {
        str(n.name): n for n in model.graph.all_nodes() if n.op_type != "Constant" or n.domain
    }
    constants = {str(n.name) for n in model.graph.all_nodes() if str(n.name) not in model_nodes}
    outputs = {
        str(v.name): name for name, node in model_nodes.items() for v in node.outputs if v.name
    }
    source_names = {str(v.name) for graph in model.graphs() for v in graph.initializers.values()}
    source_names |= {str(value.name) for value in model.graph.inputs}
    nodes: dict[str, tuple[str, ...]] = {}
    added: dict[str, int] = {}
    seen: set[str] = set()
    for provider, node_names in answer.items():
        own_names = (n if n in model_nodes else outputs.get(n, "") for n in node_names)
        mine = list(filter(None, own_names))
        nodes[provider] = tuple(dict.fromkeys(mine))
        seen.update(mine)
        more = sum(
            n not in model_nodes and n not in outputs and n not in constants | source_names
            for n in node_names
        )
        if more:
            added[provider] = more
    unassigned = tuple(name for name in model_nodes if name not in seen)
    return NodePlacement(
        backend, nodes, added, unassigned, tuple(_list_copied_tensors(model_nodes, nodes))
    )


def _list_copied_tensors(
    model_nodes: Mapping[str, ir.Node], nodes: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the tensors, shapes apart, whose maker and reader two providers took."""
    where = {model_nodes[name]: provider for provider, names in nodes.items() for name in names}
    for node, provider in where.items():
        for value in node.outputs:
            readers = [use.node for use in value.uses() if use.node.op_type not in gpu.SHAPES]
            other_providers = {where.get(reader, provider) for reader in readers} - {provider}
            if other_providers and not _is_shape(value):
                yield str(value.name)


def _is_shape(value: ir.Value) -> bool:
    whole = value.dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return whole and value.shape is not None and len(value.shape) < 2


READ_BELOW = 500_000_000
"""Bytes of a model below which all of it is read: about a second."""

_TENSORS = 20


@dataclass(frozen=True)
class TriedStep:
    """A step that changes the model, how often, and how."""

    step: str
    edits: int
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True, repr=False)
class Inspection(TableResult):
    """What is known of a model without running it.

    Attributes:
        digest: As `ortune.graph.io.file.compute_digest`; None where the weights were not read.
        file_bytes: With external data.
        facts: Counts, inputs and outputs. `flops` is of the shapes asked for.
        opsets: Domain -> version; the default domain is empty.
        shapes: Shapes that inputs were taken at; other dynamic dimensions count as 1.
        moved: Bytes that all nodes read and write in a run.
        unknown: Nodes whose FLOPs or bytes are not known.
        activations: dtype -> values that nodes make.
        nodes: Every node but constants; functions are inlined.
        bodies: Of If, Loop and Scan.
        skipped: What was left out because weights were not read; empty when they were.
        saturable: Integer layers and whether they can saturate without VNNI.
        steps: Automatic transforms that change it, tried one behind the other, with their edits;
            structure and types are checked, numbers are not. None where weights were not read.
        placement: What each backend asked would take.
    """

    table = "nodes"

    model: Path
    digest: str | None
    file_bytes: int
    producer: str
    facts: Facts
    opsets: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    moved: int
    intensity: float | None
    unknown: int
    activations: Mapping[str, int]
    nodes: tuple[node_costs.Account, ...]
    regions: tuple[node_costs.Sum, ...]
    tensors: tuple[node_costs.LargeTensor, ...]
    bodies: tuple[node_costs.Body, ...]
    functions: tuple[node_costs.LocalFunction, ...]
    lint: tuple[Finding, ...]
    skipped: str
    saturable: tuple[Saturable, ...]
    steps: tuple[TriedStep, ...]
    placement: tuple[NodePlacement, ...] = ()

    def summary(self) -> Mapping[str, object]:
        return {
            "model": self.model,
            "file bytes": self.file_bytes,
            "nodes": self.facts.nodes,
            "FLOPs": self.facts.flops,
            "bytes moved": self.moved,
            "FLOPs per byte": self.intensity,
            "findings": len(self.lint),
            "steps that may help": tuple(tried.step for tried in self.steps),
        }


def run(request: Inspect) -> Inspection:
    """Look at a model file; its weights are mapped."""
    path = Path(request.model)
    spelled = request.backends
    backends = [entry for entry, _ in parse_list(Backend, spelled)] if spelled else []
    loaded, size = file.load(path, newer_opset=True), file.count_file_bytes(path)
    read = size < READ_BELOW if request.weights is None else request.weights
    inference = infer_copy(loaded, request.shapes)
    names.make_names_unique(inference[0])
    values = list(weight_values(loaded)) if read else None
    facts = model_facts.read_facts(loaded, inference, values=values)
    parts = divide_into_regions(Origin(inference[0]))
    node_accounts = node_costs.list_accounts(inference[0], parts.of)
    moved = sum(entry.moved or 0 for entry in node_accounts)
    odd = [*lint_model(loaded, inference[0], file.parse_outline(path), values)]
    odd += _find_unfused_pairs(loaded, facts) if read else ()
    # What a GPU that was asked for would refuse, or not record, wherever we are.
    backend_names = {backend.name() for backend in backends}
    if backend_names & {"tensorrt", "tensorrt-engine"}:
        odd += gpu.lint_tensorrt(inference[0])
    if backend_names & {"tensorrt", "cuda"}:
        odd += gpu.lint_cuda_graph(inference[0])
    skipped = ""
    if not read:
        lacking = [
            "its digest",
            "findings about weights (NaN, infinity, beyond float16, denormals)",
        ]
        if facts.quantized:
            lacking += [
                "which integer layers can saturate",
                "Q/DQ pairs without an integer kernel",
            ]
        how = "reads them all" if size < READ_BELOW else f"reads all {size / 1e9:.1f} GB"
        skipped = (
            f"not checked, as weights were not read: {', '.join(lacking)}; --read-weights {how}"
        )
    node_outputs = (v for node in inference[0].graph.all_nodes() for v in node.outputs if v.name)
    placements = []
    for place, backend in enumerate(backends):
        request.sink(Progress(f"loading on {backend}", place, len(backends)))
        placements.append(query_placement(path, backend, request.shapes))
    return Inspection(
        model=path,
        digest=file.compute_digest(path) if read else None,
        file_bytes=size,
        producer=f"{loaded.producer_name or ''} {loaded.producer_version or ''}".strip(),
        facts=facts,
        opsets=dict(loaded.opset_imports),
        shapes=dict(request.shapes),
        moved=moved,
        intensity=node_costs.compute_intensity(facts.flops, moved),
        unknown=sum(entry.flops is None or entry.moved is None for entry in node_accounts),
        activations=dict(Counter(type_name(value.type) for value in node_outputs).most_common()),
        nodes=tuple(node_accounts),
        regions=tuple(node_costs.sum_by_region(inference[0], node_accounts)),
        tensors=tuple(node_costs.list_large_tensors(loaded, inference[0], _TENSORS)),
        bodies=tuple(node_costs.local_bodies(loaded)),
        functions=tuple(node_costs.local_functions(loaded)),
        lint=sort_findings(odd),
        skipped=skipped,
        saturable=list_saturable_layers(loaded) if read else (),
        steps=tuple(_try_steps(path, facts)) if read else (),
        placement=tuple(placements),
    )


inspect = make_verb(Inspect, run)


def _try_steps(path: Path, facts: Facts) -> Iterator[TriedStep]:
    """Apply the automatic transforms to the model in memory, and yield those that change it."""
    with open_temporary_folder() as folder, suppress(OrtuneError):  # one of a newer opset, say
        session = EditSession(path, Path(folder), Material(), ignore_event, trusted=False)
        before = sum(1 for _ in session.model.graph.all_nodes())
        for step in make_clean_recipe(facts).steps:
            assert isinstance(step, Transform)  # a clean recipe spends no accuracy
            with suppress(OrtuneError):
                (edit,) = session.apply_exact([step])
                after = sum(1 for _ in session.model.graph.all_nodes())
                if edit.count:
                    yield TriedStep(edit.step, edit.count, before, after)
                before = after


def _find_unfused_pairs(model: ir.Model, facts: Facts) -> Sequence[Finding]:
    """Ask the step that takes pairs out how many no integer kernel would take."""
    if not facts.quantized:
        return ()
    try:
        count = DropPairs().apply(copy := model.clone(), {})
    except OrtuneError:
        return ()
    kept = {node.name for node in edit.walk_nodes(copy)}
    gone = (
        node.name
        for node in edit.walk_nodes(model)
        if node.op_type == "QuantizeLinear" and node.name not in kept
    )
    odd = make_finding(
        "unfused-pairs",
        "warning",
        "{n} pairs of Q/DQ around operators without an integer kernel",
        gone if count else (),
        "each adds two nodes and a rounding to every run",
        "apply drop-pairs",
    )
    return () if odd is None else (odd,)


def run_diff(request: DiffRequest) -> Diff:
    """Read both files and compare them."""
    request.sink(Progress("reading the models", 0, 4))
    a, b = (file.load(path, newer_opset=True) for path in (request.a, request.b))
    return compare.diff_models(a, b, request.sink)


diff = make_verb(DiffRequest, run_diff)
