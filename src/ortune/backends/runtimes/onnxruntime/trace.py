"""onnxruntime's own profile: sessions that record, and the trace that its profiler writes.

Events are in the trace event format: a ``Session`` event ``model_run`` for every run and a
``Node`` event ``NAME_kernel_time`` for every call of a kernel, in whole microseconds. The
profiler works between two kernels, and inside them: see `Executed.span_ns`.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.core.session import Executed, Operand, Recorded, Recording, Slice, Tensors

GRAPH = "executed.onnx"
"""The graph as the runtime rewrote it, in the recording's folder."""
_BESIDE = 1024
"""Bytes of a weight that is saved beside that graph: a file of 2 GB and more cannot be written."""


class _OrtRecording(ort.OrtSession):
    """An onnxruntime session with the profiler on."""

    def __init__(self, inner: Any, folder: Path, provider: str) -> None:
        super().__init__(inner)
        self._graph = folder / GRAPH
        self._provider = provider
        self._walls: list[int] = []

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        start = time.perf_counter_ns()
        outputs = super().run(feeds)
        self._walls.append(time.perf_counter_ns() - start)
        return outputs

    def recorded(self, runs: int) -> Recorded:
        trace = Path(self.inner.end_profiling())
        executed = read_executed_graph(self._graph) if self._graph.is_file() else None
        walls = np.asarray(self._walls[-runs:], np.float64)
        assigned = self.list_assigned_nodes() if self.records else None
        profile = read_trace(trace, executed, walls, assigned)
        if executed is not None:
            return profile
        parts = [part for part in self.list_graph_parts() if part[0] == self._provider]
        return replace(profile, nodes=with_parts(profile.nodes, parts))


def with_parts(
    nodes: Sequence[Executed], parts: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[Executed, ...]:
    """Say what a provider's nodes stand for, where only its record of their parts is known.

    A provider that compiles makes one node of each part, in order; where the numbers differ,
    each may hold any of them. Other nodes keep their names.

    Args:
        parts: Provider and source nodes of every part of the graph that it took.
    """
    providers = {provider for provider, _ in parts}
    positions = [at for at, node in enumerate(nodes) if node.provider in providers]
    all_names = tuple(name for _, names in parts for name in names)
    result_nodes = [node if node.known else replace(node, known=(node.name,)) for node in nodes]
    for order, at in enumerate(positions):
        sources = parts[order][1] if len(positions) == len(parts) else all_names
        result_nodes[at] = replace(nodes[at], known=sources)
    return tuple(result_nodes)


@contextmanager
def open_recording(
    path: Path,
    session_options: Any,
    folder: Path,
    *,
    provider: str = "",
    chain: Sequence[tuple[str, Mapping[str, str]]] = (),
    disabled: Sequence[str] = (),
    content: bytes | None = None,
) -> Iterator[Recording]:
    """Open a session as `runtimes.onnxruntime.session` does, with the profiler on.

    Args:
        session_options: SessionOptions; they already say where the executed graph goes, if
        anywhere. provider: Execution provider that must hold at least one node; empty for the
        CPU's own. chain: As there.
        content: What to load in the place of the file.
    """
    ort.keep_beside(session_options, _BESIDE)
    session_options.enable_profiling = True
    session_options.profile_file_prefix = str(folder / "trace")
    opening = ort.open_session(
        path, session_options, provider=provider, chain=chain, disabled=disabled, content=content
    )
    with opening as opened:
        yield _OrtRecording(opened.inner, folder, provider)


_Key: TypeAlias = tuple[str, str, int]
"""Name, operator, and the runtime's index within its graph."""

_NO_RECORD = "placement is read from the profile: this runtime keeps no record of it"
_SUFFIX = "_kernel_time"
_BODIES = frozenset({"If", "Loop", "Scan"})
_DTYPES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Graph:
    """The executed graph: its nodes, bodies after the node that holds them, and its constants."""

    nodes: tuple[Executed, ...]
    constants: frozenset[str]


@dataclass
class _Call:
    """One call of a kernel; times in microseconds."""

    event: Mapping[str, Any]
    start: float
    kernel: float
    thread: int
    span: float = 0.0
    inside: list[_Call] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        arguments = self.event["args"]
        name = self.event["name"].removesuffix(_SUFFIX)
        return name, arguments["op_name"], int(arguments.get("node_index", 0))


@dataclass
class _Run:
    start: float
    end: float
    top: list[_Call] = field(default_factory=list)

    def walk_calls(self) -> Iterable[_Call]:
        """Yield every call, those of bodies after the node that holds them."""
        pending = list(reversed(self.top))
        while pending:
            call = pending.pop()
            yield call
            pending += reversed(call.inside)


def read_executed_graph(path: Path) -> Graph:
    """Read an executed graph that the runtime saved; weights are left on the disk."""
    import onnx

    nodes: list[Executed] = []
    constants: set[str] = set()

    def walk(body: Any, parent: str) -> None:
        constants.update(tensor.name for tensor in body.initializer)
        constants.update(tensor.values.name for tensor in body.sparse_initializer)
        for node in body.node:
            reads, writes = tuple(node.input), tuple(node.output)
            kind = (node.name, node.op_type, node.domain)
            nodes.append(Executed(*kind, reads=reads, writes=writes, parent=parent))
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g, node.name)

    walk(onnx.load(path, load_external_data=False).graph, "")
    return Graph(tuple(nodes), frozenset(constants))


def read_trace(
    trace: Path,
    executed: Graph | None,
    walls: NDArray[np.float64],
    assigned: Mapping[str, tuple[str, ...]] | None,
) -> Recorded:
    """Return the middle half, by wall time, of the last ``len(walls)`` runs of a trace.

    Args:
        executed: The graph it ran; None where the runtime could not save it.
        walls: Wall time of each run in ns, from outside.
        assigned: Provider -> nodes, from the runtime's record; None where it keeps none.
    """
    runs = _group_runs(json.loads(trace.read_text(encoding="utf-8")))[-len(walls) :]
    order = np.argsort(walls, kind="stable")
    kept = order[len(order) // 4 : len(order) - len(order) // 4]
    middle = runs[int(order[len(order) // 2])]
    chosen = [middle, *(runs[i] for i in kept if runs[i] is not middle)]
    parallel = any(len({call.thread for call in run.top}) > 1 for run in chosen)
    for run in chosen:
        _assign_spans(run.top, run.end, parallel=parallel)
    keys: dict[_Key, None] = {}
    for run in chosen:
        keys.update(dict.fromkeys(call.key for call in run.walk_calls()))
    # A kernel's node of the executed graph has its name; where several share one, or the graph has
    # none, they follow each other as the runtime's indices do.
    nodes = list(executed.nodes) if executed else []
    named: dict[str, list[int]] = defaultdict(list)
    unnamed: dict[str, list[int]] = defaultdict(list)
    for at, node in enumerate(nodes):
        (named[node.name] if node.name else unnamed[node.op_type]).append(at)
    index: dict[_Key, int] = {}
    for key in sorted(keys, key=lambda key: key[2]):
        name, op_type, _ = key
        same = named[name] or unnamed[op_type]
        position = next((at for at in same if nodes[at].op_type == op_type), None)
        if position is None:
            nodes.append(Executed(name, op_type))
            position = len(nodes) - 1
        else:
            same.remove(position)
            nodes[position] = replace(nodes[position], name=name)
        index[key] = position
    summed = _sum_runs(nodes, index, chosen)
    lines = [
        Slice(index[c.key], 1e3 * (c.start - middle.start), 1e3 * c.kernel)
        for c in middle.walk_calls()
    ]
    first = {line.index: at for at, line in reversed(list(enumerate(lines)))}
    ran = sorted(range(len(summed)), key=lambda i: (not summed[i].calls, first.get(i, len(lines))))
    place = {old: new for new, old in enumerate(ran)}
    ordered_nodes = tuple(summed[i] for i in ran)
    placed: dict[str, tuple[str, ...]] = {}
    for node in ordered_nodes:
        if node.calls:
            placed[node.provider] = (*placed.get(node.provider, ()), node.name)
    return Recorded(
        nodes=ordered_nodes,
        runs=len(chosen),
        wall_ns=float(np.mean(walls[kept])),
        run_ns=1e3 * float(np.mean([run.end - run.start for run in chosen])),
        timeline=tuple(replace(line, index=place[line.index]) for line in lines),
        constants=tuple(sorted(executed.constants)) if executed else (),
        placement=placed if assigned is None else assigned,
        parallel=parallel,
        graph=executed is not None,
        notes=(_NO_RECORD,) if assigned is None else (),
    )


def _group_runs(events: Iterable[Mapping[str, Any]]) -> list[_Run]:
    """Return the runs in order, each with its calls nested as the bodies are."""
    all_events = list(events)
    runs = [_Run(e["ts"], e["ts"] + e["dur"]) for e in all_events if e["name"] == "model_run"]
    runs.sort(key=lambda run: run.start)
    calls = [
        _Call(e, float(e["ts"]), float(e["dur"]), int(e["tid"]))
        for e in all_events
        if e["cat"] == "Node" and e["name"].endswith(_SUFFIX)
    ]
    calls.sort(key=lambda call: (call.start, -call.kernel))
    at = 0
    holders: list[_Call] = []
    for call in calls:
        while at < len(runs) and call.start > runs[at].end:
            at, holders = at + 1, []
        if at == len(runs) or call.start < runs[at].start:
            continue  # outside of every run: optimization at load
        while holders and call.start >= holders[-1].start + holders[-1].kernel:
            holders.pop()
        (holders[-1].inside if holders else runs[at].top).append(call)
        if call.event["args"]["op_name"] in _BODIES:
            holders.append(call)
    return runs


def _assign_spans(calls: Sequence[_Call], end: float, *, parallel: bool) -> None:
    """Give every call the time until the next one starts, less that of the calls inside it."""
    for call, until in zip(calls, [*(after.start for after in calls[1:]), end], strict=False):
        call.span = call.kernel if parallel else max(call.kernel, until - call.start)
        _assign_spans(call.inside, call.start + call.kernel, parallel=parallel)
        call.span = max(0.0, call.span - sum(map(_sum_spans, call.inside)))


def _sum_spans(call: _Call) -> float:
    return call.span + sum(map(_sum_spans, call.inside))


def _sum_runs(
    nodes: Sequence[Executed], index: Mapping[_Key, int], runs: Sequence[_Run]
) -> list[Executed]:
    """Fill in times, calls, provider and tensors; shapes are those of the first run given."""
    spans, kernels, counts = (np.zeros(len(nodes)) for _ in range(3))
    seen: dict[int, Mapping[str, Any]] = {}
    for call in (call for run in runs for call in run.walk_calls()):
        at = index[call.key]
        spans[at] += call.span
        kernels[at] += max(0.0, call.kernel - sum(map(_sum_spans, call.inside)))
        counts[at] += 1
        seen.setdefault(at, call.event["args"])
    timed_nodes = list(nodes)
    for at, arguments in seen.items():
        timed_nodes[at] = replace(
            nodes[at],
            provider=arguments.get("provider", ""),
            calls=max(1, round(counts[at] / len(runs))),
            span_ns=1e3 * spans[at] / len(runs),
            kernel_ns=1e3 * kernels[at] / len(runs),
            inputs=_read_operands(arguments.get("input_type_shape", ())),
            outputs=_read_operands(arguments.get("output_type_shape", ())),
        )
    return timed_nodes


def _read_operands(listed: Iterable[Mapping[str, Sequence[int]]]) -> tuple[Operand, ...]:
    operands = []
    for entry in listed:
        for kind, shape in entry.items():
            dtype = _DTYPES.get(kind, kind)
            # Bits of an element; 0 for those without a fixed size.
            digits = "".join(c for c in dtype.split("e")[0] if c.isdigit())
            bits = 8 if dtype == "bool" else int(digits or 0)
            operands.append(Operand(dtype, tuple(shape), math.prod(shape) * bits // 8))
    return tuple(operands)
