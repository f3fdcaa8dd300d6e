"""From what a runtime recorded to kernels in terms of the model's nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortune.analysis.profiling.tensor_sizes import filled
from ortune.core.backend import Backend
from ortune.core.profile import Kernel
from ortune.core.session import Executed, Operand, Recorded
from ortune.measurement.timing.operators import SAME_WORK
from ortune.model.analysis.dataflow import Origin
from ortune.model.analysis.flops import node_flops
from ortune.model.analysis.regions import Regions
from ortune.model.graph.spec import dtype_name
from ortune.model.mapping.nodes import ADDED, Lineage

_CONTROL = frozenset({"If", "Loop", "Scan"})
_SHAPE = frozenset({"Shape", "Size", "Flatten", "Expand", "ShapeOf", "StridedSlice"})
_PACKED_CONV = frozenset({"QLinearConv", "Conv", "FusedConv", "NhwcFusedConv"})
_WEIGHTED = frozenset(
    (
        "Conv",
        "ConvTranspose",
        "MatMul",
        "Gemm",
        "LSTM",
        "GRU",
        "RNN",
        "MatMulInteger",
        "QLinearConv",
    )
)
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


def times(recorded: Recorded, plain_ns: float) -> tuple[float, ...]:
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


def kernels(
    recorded: Recorded,
    traced: Lineage,
    parts: Regions,
    origin: Origin,
    taken: Sequence[float],
    backend: Backend,
    known: Mapping[str, Operand] | None = None,
) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Return the kernels that ran, in their order, and the source nodes that cost nothing.

    Args:
        traced: Node by node, the source nodes that it stands for.
        taken: Node by node, ns of a plain run.
        known: Tensors of the source model, for nodes whose own are not recorded.
    """
    constants = frozenset(recorded.constants)
    made: list[Kernel] = []
    region = parts.all[0].name if parts.all else ""
    claimed = _claimed(recorded, traced, origin, backend)
    for executed, sources, time_ns in zip(recorded.nodes, traced.sources, taken, strict=True):
        if not executed.calls:
            continue
        node = filled(executed, sources, origin, known or {})
        read = _inputs(node, constants)
        packed = tuple(packed_weights(read, sources, origin))
        region = _region(sources, parts.of) or region
        kind = _kind(node.op_type)
        note = _WHY.get(kind, "") if not sources else ""
        if fell_back(node.provider, backend):
            note = note or _unclaimed(_operators(node, sources, origin), claimed)
        made.append(
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
                flops=_flops(node, sources, origin, packed),
                inputs=(*read, *packed),
                outputs=node.outputs,
                note=note,
                span_ns=node.span_ns,
                kernel_ns=node.kernel_ns,
            )
        )
    busy = {name for kernel in made for name in kernel.sources}
    idle = {name for sources in traced.sources for name in sources}
    return tuple(made), origin.ordered((idle | set(traced.folded)) - busy)


def fell_back(provider: str, backend: Backend) -> bool:
    """Whether a node ran on onnxruntime's CPU provider where another one was asked for."""
    return provider == "CPUExecutionProvider" and backend.provider not in ("", provider)


def _claimed(
    recorded: Recorded, traced: Lineage, origin: Origin, backend: Backend
) -> frozenset[str]:
    """Return the operators of the model of which the provider asked for took at least one."""
    return frozenset(
        op_type
        for node, sources in zip(recorded.nodes, traced.sources, strict=True)
        if node.provider and not fell_back(node.provider, backend)
        for op_type in _operators(node, sources, origin)
    )


def _operators(node: Executed, sources: Sequence[str], origin: Origin) -> tuple[str, ...]:
    found = dict.fromkeys(origin.nodes[name].op_type for name in sources)
    return tuple(found) or (node.op_type,)


def _unclaimed(operators: Sequence[str], claimed: frozenset[str]) -> str:
    """Say what the placement shows of why a node was left: the runtime gives no reason."""
    never = [one for one in operators if one not in claimed]
    if never:
        return f"the provider claimed no {' or '.join(never)}"
    named = " and ".join(operators)
    return f"the provider claimed other nodes of {named}: types, shapes or attributes differ"


def _kind(op_type: str) -> str:
    if op_type in _CONTROL:
        return "control"
    if op_type == "Identity":
        return "copy"
    return "shape" if op_type in _SHAPE else ADDED.get(op_type, "compute")


def _region(sources: Sequence[str], of: Mapping[str, str]) -> str:
    found = Counter(of[name] for name in sources if name in of)
    return found.most_common(1)[0][0] if found else ""


def _inputs(node: Executed, constants: frozenset[str]) -> tuple[Operand, ...]:
    reads = [name for name in node.reads if name]
    if len(reads) != len(node.inputs):
        return node.inputs
    return tuple(
        replace(one, constant=one.constant or name in constants)
        for name, one in zip(reads, node.inputs, strict=True)
    )


def packed_weights(
    read: Sequence[Operand], sources: Sequence[str], origin: Origin
) -> Iterator[Operand]:
    """Yield the weights that a kernel keeps in a layout of its own and so does not list.

    They are those of its sources: every run reads them, whatever they are called.
    """
    if any(one.constant and len(one.shape) >= 2 for one in read):
        return
    for name in sources:
        if origin.nodes[name].op_type not in _WEIGHTED:
            continue
        for value in origin.nodes[name].inputs[1:]:
            source = None if value is None else value.producer()
            if source is not None and source.op_type == "DequantizeLinear":
                value = source.inputs[0]
            tensor = None if value is None else value.const_value
            if tensor is not None and len(tensor.shape) >= 2:
                shape = tuple(tensor.shape.numpy())
                yield Operand(dtype_name(tensor.dtype), shape, tensor.nbytes, constant=True)


def _flops(
    node: Executed, sources: Sequence[str], origin: Origin, packed: Sequence[Operand]
) -> int | None:
    """Count one call by the shapes of the run and the attributes of the source, times calls."""
    op_type = SAME_WORK.get(node.op_type, node.op_type)
    given = [_value(one, grouped=node.op_type == "GroupConvolution") for one in node.inputs]
    attributes: list[ir.Attr] = []
    for name in sources:
        if origin.nodes[name].op_type in op_type:
            attributes = [a for a in origin.nodes[name].attributes.values() if not _holds(a)]
    if _kind(node.op_type) != "compute":
        return 0
    if not node.inputs or not node.outputs:
        return None
    if packed and op_type in _PACKED_CONV:  # the place of its weight is empty
        each = 2 * math.prod(packed[0].shape[1:])
        return node.calls * each * math.prod(node.outputs[0].shape)
    outputs = [_value(one) for one in node.outputs]
    made = ir.Node(node.domain, op_type, given, attributes, outputs=outputs)
    found = node_flops(made)
    return None if found is None else found * node.calls


def _holds(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _value(operand: Operand, *, grouped: bool = False) -> ir.Value:
    shape = operand.shape
    if grouped and operand.constant and len(shape) > 3:  # [group, out, in, kernel...]
        shape = (shape[0] * shape[1], *shape[2:])
    return ir.Value(name="", shape=ir.Shape(shape))
