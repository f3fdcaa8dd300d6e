"""Where the time of a run goes, in terms of the model's own nodes."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortune.analysis.profiling.requests import ProfileRequest
from ortune.backends.cpu import Cpu
from ortune.core import hub, wording
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.event import Note, Progress
from ortune.core.plugins.spelling import parse_list
from ortune.core.profile import Ceilings, Kernel, Profile
from ortune.core.request import make_verb
from ortune.core.session import Executed, Operand, Recorded
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import synthetic
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.analysis.dataflow import Origin, Regions, divide_into_regions
from ortune.graph.analysis.node_costs import node_flops
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.graph.ir.edit import dtype_name
from ortune.graph.mapping.nodes import ADDED, Lineage, count_integer_layers, trace_lineage
from ortune.graph.shapes.infer import infer_shapes
from ortune.measurement import peaks as roofs
from ortune.measurement.process import query_capabilities, require_backend, single_model_job
from ortune.measurement.timing.operators import SAME_WORK, Runs, find_main_source, profile_model
from ortune.measurement.workloads.latency import Latency

_SIZELESS = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


def infer_operands(model: ir.Model, stream: Path, batch: int) -> dict[str, Operand]:
    """Return the tensors whose size follows from the first sample; the model is left alone.

    Args:
        model: Without local functions.
        batch: Samples stacked into a run; 0 or 1 takes one.
    """
    copy = model.clone()
    for node in edit.walk_nodes(copy):
        for value in node.outputs:
            value.shape = None
    sample = Stream(stream)[0]
    for value in copy.graph.inputs:
        if value.name in sample:
            shape = sample[value.name].shape
            rows = [shape[0] * max(1, batch), *shape[1:]] if shape else []
            value.shape = ir.Shape(rows)
    infer_shapes(copy)
    values = [v for node in edit.walk_nodes(copy) for v in (*node.inputs, *node.outputs)]
    operands = {str(v.name): _make_operand(v) for v in values if v is not None and v.name}
    return {name: operand for name, operand in operands.items() if operand is not None}


def fill_operands(
    node: Executed, sources: Sequence[str], origin: Origin, operands: Mapping[str, Operand]
) -> Executed:
    """Give an executed node the tensors of its sources where the runtime recorded none.

    It reads what its sources read from elsewhere, and writes what others read of theirs. Nothing
    is filled in unless all of it is known.
    """
    if not sources or (node.inputs and node.outputs):
        return node
    inside = set(sources)
    output_names = [name for source in sources for name in origin.outputs[source]]
    read_names = [name for source in sources for name in origin.inputs[source]]
    reads = [name for name in read_names if name and name not in output_names]
    writes = [
        name
        for name in output_names
        if name in origin.results or not inside.issuperset(origin.readers.get(name, ()))
    ]
    reads = list(dict.fromkeys(reads))
    inputs = node.inputs or tuple(operands[name] for name in reads if name in operands)
    outputs = node.outputs or tuple(operands[name] for name in writes if name in operands)
    if not node.inputs and len(inputs) != len(reads):
        return node
    if not node.outputs and len(outputs) != len(writes):
        return node
    return replace(node, inputs=inputs, outputs=outputs)


def _make_operand(value: ir.Value) -> Operand | None:
    tensor, constant = value.const_value, value.const_value is not None
    shape = value.shape if tensor is None else tensor.shape
    dtype = value.dtype if tensor is None else tensor.dtype
    if shape is None or dtype is None or not all(isinstance(side, int) for side in shape):
        return None
    sides = tuple(int(str(side)) for side in shape)
    each = 0.0 if dtype in _SIZELESS else dtype.itemsize
    return Operand(dtype_name(dtype), sides, int(math.prod(sides) * each), constant)


_CONTROL = frozenset({"If", "Loop", "Scan"})
_SHAPE = frozenset({"Shape", "Size", "Flatten", "Expand", "ShapeOf", "StridedSlice"})
_PACKED_CONV = frozenset({"QLinearConv", "Conv", "FusedConv", "NhwcFusedConv"})
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN"})
_WEIGHTED |= {"MatMulInteger", "QLinearConv"}
_WHY = {
    "reorder": "added by the runtime: the next kernel wants another layout",
    "copy": "added by the runtime: the next node is on another device",
    "cast": "added by the runtime: the next kernel wants another type",
    "quantize": "added by the runtime: the next kernel wants another type",
    "transpose": "added by the runtime: the next kernel wants another layout",
    "shape": "added by the runtime",
}
_STEP_NS = 200.0
"""From one kernel to the next without a profiler, about; no call takes less."""
_INSIDE = 0.7
_SCALE = 2.0


def estimate_node_times(recorded: Recorded, plain_ns: float) -> tuple[float, ...]:
    """Return what every node takes of a plain run.

    The profiler works between kernels: the gaps are taken off but for a step. It works inside of
    them too, alike for each: what the profiled runs are longer for beyond the gaps is taken off
    evenly, up to most of the shortest kernel. The rest of the difference slows all alike: the
    times are scaled to the plain run, up by 2 at most, down as far as it takes: what a run takes
    is more than its parts.
    """
    spans = np.array([node.span_ns for node in recorded.nodes])
    alone = np.array([node.kernel_ns for node in recorded.nodes])
    calls = np.array([node.calls for node in recorded.nodes], np.float64)
    ran = calls > 0
    if not ran.any() or not spans.sum():
        return tuple(spans.tolist())
    bare = np.minimum(spans, alone + _STEP_NS * calls)
    excess = recorded.wall_ns - plain_ns - float((spans - bare).sum())
    most = _INSIDE * float(np.percentile(alone[ran] / calls[ran], 2))
    inside = min(max(0.0, excess / float(calls.sum())), most)
    bare = np.maximum(bare - inside * calls, np.minimum(bare, _STEP_NS * calls))
    outside = max(0.0, recorded.wall_ns - float(spans.sum()))
    room = max(plain_ns - outside, plain_ns / 2)
    scale = 1.0 if recorded.parallel else min(room / float(bare.sum()), _SCALE)
    return tuple((bare * scale).tolist())


def list_kernels(
    recorded: Recorded,
    traced: Lineage,
    parts: Regions,
    origin: Origin,
    node_times_ns: Sequence[float],
    backend: Backend,
    *,
    operands: Mapping[str, Operand] | None = None,
) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Return the kernels that ran, in their order, and the source nodes that cost nothing.

    Args:
        traced: Node by node, the source nodes that it stands for.
        node_times_ns: Node by node, ns of a plain run.
        operands: Tensors of the source model, for nodes whose own are not recorded.
    """
    constants = frozenset(recorded.constants)
    op_types = {name: node.op_type for name, node in origin.nodes.items()}
    mapped_kernels: list[Kernel] = []
    region = parts.all[0].name if parts.all else ""
    # The operators of the model of which the provider asked for took at least one.
    claimed = frozenset(
        op_type
        for node, sources in zip(recorded.nodes, traced.sources, strict=True)
        if node.provider and not is_fallback(node.provider, backend)
        for op_type in _list_operators(node, sources, origin)
    )
    for executed, sources, time_ns in zip(
        recorded.nodes, traced.sources, node_times_ns, strict=True
    ):
        if not executed.calls:
            continue
        node = fill_operands(executed, sources, origin, operands or {})
        reads, read = [name for name in node.reads if name], node.inputs
        if len(reads) == len(read):
            read = tuple(
                replace(operand, constant=operand.constant or name in constants)
                for name, operand in zip(reads, node.inputs, strict=True)
            )
        packed = tuple(find_packed_weights(read, sources, origin))
        counts = Counter(parts.of[name] for name in sources if name in parts.of)
        region = counts.most_common(1)[0][0] if counts else region
        kind = _classify_operator(node.op_type)
        note = _WHY.get(kind, "") if not sources else ""
        if is_fallback(node.provider, backend):
            note = note or _explain_fallback(_list_operators(node, sources, origin), claimed)
        mapped_kernels.append(
            Kernel(
                name=node.name,
                op_type=node.op_type,
                domain=node.domain,
                provider=node.provider,
                sources=sources,
                kind=kind,
                region=region,
                time_ns=time_ns,
                calls=node.calls,
                flops=_count_flops(node, sources, origin, packed),
                inputs=(*read, *packed),
                outputs=node.outputs,
                note=note,
                span_ns=node.span_ns,
                kernel_ns=node.kernel_ns,
                main=find_main_source(node, sources, op_types) if sources else "",
            )
        )
    busy = {name for kernel in mapped_kernels for name in kernel.sources}
    idle = {name for sources in traced.sources for name in sources}
    return tuple(mapped_kernels), origin.sort_nodes((idle | set(traced.folded)) - busy)


def is_fallback(provider: str, backend: Backend) -> bool:
    """Whether a node ran on onnxruntime's CPU provider where another one was asked for."""
    return provider == "CPUExecutionProvider" and backend.provider not in ("", provider)


def _list_operators(node: Executed, sources: Sequence[str], origin: Origin) -> tuple[str, ...]:
    op_types = dict.fromkeys(origin.nodes[name].op_type for name in sources)
    return tuple(op_types) or (node.op_type,)


def _explain_fallback(operators: Sequence[str], claimed: frozenset[str]) -> str:
    """Say what the placement shows of why a node was left: the runtime gives no reason."""
    never = [op_type for op_type in operators if op_type not in claimed]
    if never:
        return f"the provider claimed no {' or '.join(never)}"
    named = " and ".join(operators)
    return f"the provider claimed other nodes of {named}: types, shapes or attributes differ"


def _classify_operator(op_type: str) -> str:
    if op_type in _CONTROL:
        return "control"
    if op_type == "Identity":
        return "copy"
    return "shape" if op_type in _SHAPE else ADDED.get(op_type, "compute")


def find_packed_weights(
    read: Sequence[Operand], sources: Sequence[str], origin: Origin
) -> Iterator[Operand]:
    """Yield the weights that a kernel keeps in a layout of its own and so does not list.

    They are those of its sources: every run reads them, whatever they are called.
    """
    if any(operand.constant and len(operand.shape) >= 2 for operand in read):
        return
    for name in sources:
        if origin.nodes[name].op_type not in _WEIGHTED:
            continue
        for value in origin.nodes[name].inputs[1:]:
            if (tensor := find_matrix(value)) is not None:
                shape = tuple(tensor.shape.numpy())
                yield Operand(dtype_name(tensor.dtype), shape, tensor.nbytes, constant=True)


def find_matrix(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return a constant of two dimensions or more, also from behind a DequantizeLinear."""
    source = None if value is None else value.producer()
    if source is not None and source.op_type == "DequantizeLinear":
        value = source.inputs[0]
    tensor = None if value is None else value.const_value
    return tensor if tensor is not None and len(tensor.shape) >= 2 else None


def _count_flops(
    node: Executed, sources: Sequence[str], origin: Origin, packed: Sequence[Operand]
) -> int | None:
    """Count one call by the shapes of the run and the attributes of the source, times calls."""
    op_type = SAME_WORK.get(node.op_type, node.op_type)
    inputs = [
        _make_value(operand, grouped=node.op_type == "GroupConvolution") for operand in node.inputs
    ]
    attributes: list[ir.Attr] = []
    for name in sources:
        if origin.nodes[name].op_type in op_type:
            graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            source_attributes = origin.nodes[name].attributes.values()
            attributes = [a for a in source_attributes if a.type not in graphs]
    if _classify_operator(node.op_type) != "compute":
        return 0
    if not node.inputs or not node.outputs:
        return None
    if packed and op_type in _PACKED_CONV:  # the place of its weight is empty
        each = 2 * math.prod(packed[0].shape[1:])
        return node.calls * each * math.prod(node.outputs[0].shape)
    outputs = [_make_value(operand) for operand in node.outputs]
    shaped_node = ir.Node(node.domain, op_type, inputs, attributes, outputs=outputs)
    flops = node_flops(shaped_node)
    return None if flops is None else flops * node.calls


def _make_value(operand: Operand, *, grouped: bool = False) -> ir.Value:
    shape = operand.shape
    if grouped and operand.constant and len(shape) > 3:  # [group, out, in, kernel...]
        shape = (shape[0] * shape[1], *shape[2:])
    return ir.Value(name="", shape=ir.Shape(shape))


_ROUGH = 1.5
"""Time of a profiled run over a plain one from which the times of small nodes are guesses."""
_LOST = 0.05
"""Share of a profiled run in no node from which it is worth a note."""


def run(request: ProfileRequest) -> Profile:
    """Run a model with its runtime's profiler, in turns with plain runs, and explain the time."""
    backend = _parse_backend(request.backend)
    path = Path(request.model)
    workload = Latency(request.batch)
    with open_temporary_folder() as folder:
        takes, out = model_facts.read_facts(file.load(path)).inputs, folder / "data"
        fed = synthetic.load_or_generate_feeds(
            request.data,
            takes,
            out,
            batch=request.batch,
            shapes=request.shapes,
            ranges=request.ranges,
            settings=hub.find_folder(path),
            sink=request.sink,
        )
        source, loaded, changes = load_labelled_model(path, folder)
        notes = list(changes)
        for last in (not request.allow_fallback, True):
            try:
                job = single_model_job(
                    loaded, backend, fed.stream, folder, "profile", workload=workload
                )
                runs = profile_model(
                    job, seconds=request.time, runs=request.runs, sink=request.sink
                )
                require_placement(path, backend, runs.recorded)
                break
            except BackendMissing as error:
                if last:
                    raise
                notes.append(f"{error.what}: profiled on cpu instead")
                backend = Cpu(threads=backend.threads, custom_ops=backend.custom_ops)
        operands = infer_operands(source, fed.stream, request.batch)
    measured = None
    if request.ceilings:
        request.sink(Progress("measuring peak arithmetic rate and bandwidth"))
        try:
            measured = roofs.measure_ceilings(backend)
        except OrtuneError as error:
            notes.append(error.what)
    result = explain_runs(
        path, source, backend, runs, measured, notes, batch=request.batch, operands=operands
    )
    for text in result.notes:
        request.sink(Note(text))
    return result


profile = make_verb(ProfileRequest, run)


def explain_runs(
    path: Path,
    source: ir.Model,
    backend: Backend,
    runs: Runs,
    ceilings: Ceilings | None,
    notes: list[str],
    *,
    batch: int = 0,
    operands: Mapping[str, Operand] | None = None,
) -> Profile:
    """Bring a record and the model it is of together."""
    recorded = runs.recorded
    origin = Origin(source)
    traced = trace_lineage(source, recorded)
    parts = divide_into_regions(origin)
    taken_ns = estimate_node_times(recorded, runs.plain_ns)
    mapped_kernels, folded = list_kernels(
        recorded, traced, parts, origin, taken_ns, backend, operands=operands
    )
    offered = query_capabilities(backend)
    return Profile(
        model=str(path),
        backend=str(backend),
        kernels=mapped_kernels,
        runs=recorded.runs,
        profiled_ns=recorded.run_ns,
        plain_ns=runs.plain_ns,
        profiled_call_ns=recorded.wall_ns,
        folded=folded,
        ceilings=ceilings,
        notes=(*notes, *recorded.notes, *_list_remarks(runs, traced)),
        machine={**offered.machine, **offered.versions},
        regions=parts.all,
        placement={name: len(node_names) for name, node_names in recorded.placement.items()},
        fallbacks={k.name: k.note for k in mapped_kernels if is_fallback(k.provider, backend)},
        timeline=recorded.timeline,
        batch=batch,
        parallel=recorded.parallel,
        integers=count_integer_layers(source, recorded, traced),
        graph=source.graph.name or "",
    )


def load_labelled_model(path: Path, folder: Path) -> tuple[ir.Model, Path, tuple[str, ...]]:
    """Return a model whose nodes can be told apart, the file to run, and what was done for it.

    Runtimes inline functions, and name what has no name, by rules of their own. Where the file
    has functions, nodes without a name or names used twice, a copy without them is run instead:
    it computes the same by the same nodes.
    """
    model = file.load(path)
    calls = edit.inline_functions(model)
    names.make_names_unique(model)
    mine = [(n.name, *(v.name or "" for v in n.outputs)) for n in edit.walk_nodes(model)]
    theirs = _list_node_names(onnx.load(path, load_external_data=False).graph)
    if not calls and sorted(mine) == sorted(theirs):
        return model, path.absolute(), ()
    copy = folder / "labelled" / path.name
    copy.parent.mkdir(exist_ok=True)
    file.save(model, copy, durable=False)
    inlined = "functions inlined and " if calls else ""
    text = f"run as a copy with {inlined}a name of its own for every node"
    return model, copy, (text,)


def _list_node_names(graph: onnx.GraphProto) -> list[tuple[str, ...]]:
    node_names = []
    for node in graph.node:
        node_names.append((node.name, *node.output))
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                node_names += _list_node_names(body)
    return node_names


def _parse_backend(on: str | Backend) -> Backend:
    if isinstance(on, str):
        backends = [backend for backend, _ in parse_list(Backend, on)]
        if len(backends) != 1:
            raise BadSettings(f"'{on}' is not one backend", fix="profile one backend at a time")
        on = backends[0]
    require_backend(on)
    return on


def require_placement(path: Path, backend: Backend, recorded: Recorded) -> None:
    """Refuse a profile in which the provider asked for ran nothing.

    Where the runtime keeps a record of its placement this is found when the model is loaded.
    """
    ran = [node.provider for node in recorded.nodes if node.calls]
    if ran and all(is_fallback(provider, backend) for provider in ran):
        raise BackendMissing(
            f"{backend.provider} took none of {wording.format_count(len(ran), 'node')} of "
            f"{path.name}",
            fix="leave this backend out with --on cpu, or give --allow-fallback",
        )


def _list_remarks(runs: Runs, traced: Lineage) -> list[str]:
    recorded, remarks = runs.recorded, []
    slower = recorded.wall_ns / max(1.0, runs.plain_ns)
    if slower > _ROUGH:
        remarks.append(
            f"a profiled run takes {slower:.1f} times a plain one: node times are rough"
        )
    lost = 1 - sum(node.span_ns for node in recorded.nodes) / max(1.0, recorded.run_ns)
    if lost > _LOST:
        remarks.append(f"{lost:.0%} of the profiled run is in no node that the runtime reports")
    if recorded.parallel:
        remarks.append("nodes ran side by side: their times may sum to more than the run")
    if traced.guessed:
        remarks.append(
            "assigned to the nearest kernel: "
            f"{wording.format_count(len(traced.guessed), 'source node')}"
        )
    if traced.followed:
        remarks.append(
            "assigned to the source nodes behind their predecessors: "
            f"{wording.format_count(len(traced.followed), 'kernel')} without a matching name"
        )
    if not recorded.graph:
        remarks.append(
            "the runtime does not export the graph that it executes: kernels are "
            "matched to nodes by name"
        )
    return remarks
