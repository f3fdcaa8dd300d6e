"""Where the time of a run goes, in terms of the model's own nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnx_ir as ir

from ortune.analysis.profiling import kernels
from ortune.analysis.profiling.requests import ProfileRequest
from ortune.analysis.profiling.tensor_sizes import sizes
from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.event import Note, Progress
from ortune.core.plugins.spelling import parse_list
from ortune.core.profile import Ceilings, Profile
from ortune.core.request import verb
from ortune.core.session import Operand, Recorded
from ortune.data import given
from ortune.measurement import peaks as roofs
from ortune.measurement.capabilities import capabilities, demand
from ortune.measurement.process import lone
from ortune.measurement.timing.profiled import Runs, profiled
from ortune.model.analysis import facts as model_facts
from ortune.model.analysis.dataflow import Origin
from ortune.model.analysis.regions import regions
from ortune.model.graph import edit
from ortune.model.io import file, names
from ortune.model.mapping.nodes import Lineage, lineage
from ortune.workloads.latency import Latency

_ROUGH = 1.5
"""Time of a profiled run over a plain one from which the times of small nodes are guesses."""
_LOST = 0.05
"""Share of a profiled run in no node from which it is worth a note."""


def run(asked: ProfileRequest) -> Profile:
    """Run a model with its runtime's profiler, in turns with plain runs, and explain the time."""
    backend, path, workload = (
        _backend(asked.backend),
        Path(asked.model),
        Latency(batch=asked.batch),
    )
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        takes, out = model_facts.facts(file.load(path)).inputs, folder / "data"
        fed = given.samples(
            asked.data,
            takes,
            out,
            batch=asked.batch,
            shapes=asked.shapes,
            ranges=asked.ranges,
            sink=asked.sink,
        )
        source, loaded, changes = labelled(path, folder)
        notes = list(changes)
        for last in (not asked.allow_fallback, True):
            try:
                job = lone(loaded, backend, fed.stream, folder, "profile", workload)
                found = profiled(job, seconds=asked.seconds, runs=asked.runs, sink=asked.sink)
                demand_taken(path, backend, found.recorded)
                break
            except BackendMissing as error:
                if last:
                    raise
                notes.append(f"{error.what}: profiled on cpu instead")
                backend = Cpu(threads=backend.threads, custom_ops=backend.custom_ops)
        known = sizes(source, fed.stream, asked.batch)
    if asked.ceilings:
        asked.sink(Progress("measuring what the machine can do at most"))
    measured = _ceilings(backend, notes) if asked.ceilings else None
    made = explained(path, source, backend, found, measured, notes, asked.batch, known)
    for text in made.notes:
        asked.sink(Note(text))
    return made


profile = verb(ProfileRequest, run)


def explained(
    path: Path,
    source: ir.Model,
    backend: Backend,
    found: Runs,
    ceilings: Ceilings | None,
    notes: list[str],
    batch: int = 0,
    known: Mapping[str, Operand] | None = None,
) -> Profile:
    """Bring a record and the model it is of together."""
    recorded = found.recorded
    origin = Origin(source)
    traced = lineage(source, recorded)
    parts = regions(origin)
    times = kernels.times(recorded, found.plain_ns)
    every, folded = kernels.kernels(recorded, traced, parts, origin, times, backend, known)
    offered = capabilities(backend)
    return Profile(
        model=str(path),
        backend=str(backend),
        kernels=every,
        runs=recorded.runs,
        profiled_ns=recorded.run_ns,
        plain_ns=found.plain_ns,
        profiled_call_ns=recorded.wall_ns,
        folded=folded,
        ceilings=ceilings,
        notes=(*notes, *recorded.notes, *_remarks(found, traced)),
        machine={**offered.machine, **offered.versions},
        regions=parts.all,
        placement={name: len(taken) for name, taken in recorded.placement.items()},
        fallbacks={k.name: k.note for k in every if kernels.fell_back(k.provider, backend)},
        timeline=recorded.timeline,
        batch=batch,
        parallel=recorded.parallel,
    )


def labelled(path: Path, folder: Path) -> tuple[ir.Model, Path, tuple[str, ...]]:
    """Return a model whose nodes can be told apart, the file to run, and what was done for it.

    Runtimes inline functions, and name what has no name, by rules of their own. Where the file
    has functions, nodes without a name or names used twice, a copy without them is run instead:
    it computes the same by the same nodes.
    """
    model = file.load(path)
    calls = edit.inline(model)
    names.unique(model)
    mine = [(n.name, *(v.name or "" for v in n.outputs)) for n in edit.every_node(model)]
    theirs = _names(onnx.load(path, load_external_data=False).graph)
    if not calls and sorted(mine) == sorted(theirs):
        return model, path.resolve(), ()
    copy = folder / "labelled" / path.name
    copy.parent.mkdir(exist_ok=True)
    file.save(model, copy, durable=False)
    inlined = "functions inlined and " if calls else ""
    text = f"run as a copy with {inlined}a name of its own for every node"
    return model, copy, (text,)


def _names(graph: onnx.GraphProto) -> list[tuple[str, ...]]:
    found = []
    for node in graph.node:
        found.append((node.name, *node.output))
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found += _names(body)
    return found


def _backend(on: str | Backend) -> Backend:
    if isinstance(on, str):
        found = [backend for backend, _ in parse_list(Backend, on)]
        if len(found) != 1:
            raise BadSettings(f"'{on}' is not one backend", fix="profile one backend at a time")
        on = found[0]
    demand(on)
    return on


def demand_taken(path: Path, backend: Backend, recorded: Recorded) -> None:
    """Refuse a profile in which the provider asked for ran nothing.

    Where the runtime keeps a record of its placement this is found when the model is loaded.
    """
    ran = [node.provider for node in recorded.nodes if node.calls]
    if ran and all(kernels.fell_back(provider, backend) for provider in ran):
        raise BackendMissing(
            f"{backend.provider} took none of {wording.count(len(ran), 'node')} of {path.name}",
            fix="leave this backend out with --on cpu, or give --allow-fallback",
        )


def _ceilings(backend: Backend, notes: list[str]) -> Ceilings | None:
    try:
        return roofs.measure(backend)
    except OrtuneError as error:
        notes.append(error.what)
        return None


def _remarks(found: Runs, traced: Lineage) -> list[str]:
    recorded, remarks = found.recorded, []
    slower = recorded.wall_ns / max(1.0, found.plain_ns)
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
            f"assigned to the nearest kernel: {wording.count(len(traced.guessed), 'source node')}"
        )
    if traced.followed:
        remarks.append(
            "assigned to the source nodes behind their predecessors: "
            f"{wording.count(len(traced.followed), 'kernel')} that no name identifies"
        )
    if not recorded.graph:
        remarks.append("the runtime does not show the graph that it executes: nodes go by name")
    return remarks
