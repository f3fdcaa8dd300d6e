"""Which nodes of a model each provider would take: asked of the provider, in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from ortune.analysis.profiling.profile import labelled
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.measurement.capabilities import capabilities
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed
from ortune.model.lint.gpu import SHAPES

_TIMEOUT_S = 600


@dataclass(frozen=True)
class Placed:
    """A backend's answer for a model.

    Attributes:
        backend: As it was asked for.
        nodes: Provider -> names of the model's nodes that it takes; constants are left out.
        added: Provider -> nodes that the runtime adds, such as casts.
        left: Nodes that no provider names: the runtime takes them apart, or does without them.
        copied: Tensors that one provider makes and another reads: each is copied in every run, and
            no CUDA graph is recorded over it. Shapes, which stay on the CPU, are left out.
        problem: Why it does not take the model, or cannot be asked; empty when it answered.
        fix: What to do about that.
    """

    backend: str
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def placed(path: Path, backend: Backend) -> Placed:
    """Load the model in a worker and ask; whatever goes wrong is the answer.

    Raises:
        BadModel: The file cannot be read.
    """
    try:
        reason = capabilities(backend).missing
    except OrtuneError as error:
        return Placed(str(backend), problem=error.what, fix=error.fix)
    if reason is not None:
        return Placed(str(backend), problem="it cannot run here", fix=reason)
    with TemporaryDirectory(prefix="ortune-") as name:
        model, source, _ = labelled(path, Path(name))
        job = WorkerJob({MAIN: source}, backend, {}, Path(name).resolve() / "worker")
        try:
            with Worker(job, timeout_s=_TIMEOUT_S) as worker:
                answer = worker.ask("takes")["takes"]
        except WorkerFailed as error:
            return Placed(str(backend), problem=error.failure.reason, fix=error.failure.fix)
    return assignment(str(backend), model, answer)


def assignment(backend: str, model: ir.Model, answer: Mapping[str, list[str]]) -> Placed:
    """Separate the model's own nodes from those that the runtime added."""
    own = {str(n.name): n for n in model.graph.all_nodes() if n.op_type != "Constant" or n.domain}
    constants = {str(n.name) for n in model.graph.all_nodes() if str(n.name) not in own}
    outputs = {str(v.name): name for name, node in own.items() for v in node.outputs if v.name}
    held = {str(v.name) for graph in model.graphs() for v in graph.initializers.values()}
    held |= {str(value.name) for value in model.graph.inputs}
    nodes: dict[str, tuple[str, ...]] = {}
    added: dict[str, int] = {}
    seen: set[str] = set()
    for provider, names in answer.items():
        mine = [own_name for n in names if (own_name := n if n in own else outputs.get(n, ""))]
        nodes[provider] = tuple(dict.fromkeys(mine))
        seen.update(mine)
        more = sum(n not in own and n not in outputs and n not in constants | held for n in names)
        if more:
            added[provider] = more
    left = tuple(name for name in own if name not in seen)
    return Placed(backend, nodes, added, left, tuple(_copied(own, nodes)))


def _copied(own: Mapping[str, ir.Node], nodes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the tensors, shapes apart, whose maker and reader two providers took."""
    where = {own[name]: provider for provider, names in nodes.items() for name in names}
    for node, provider in where.items():
        for value in node.outputs:
            readers = [use.node for use in value.uses() if use.node.op_type not in SHAPES]
            others = {where.get(reader, provider) for reader in readers} - {provider}
            if others and not _is_shape(value):
                yield str(value.name)


def _is_shape(value: ir.Value) -> bool:
    whole = value.dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return whole and value.shape is not None and len(value.shape) < 2
