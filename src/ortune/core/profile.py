"""Where the time of a run goes, kernel by kernel, in terms of the model's own nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ortune.core.result import TableResult
from ortune.core.session import IntegerUse, Operand, Slice
from ortune.core.trial import Interval


@dataclass(frozen=True)
class Kernel:
    """One node of the graph as the runtime executes it."""

    name: str  # the runtime's name for it
    op_type: str  # the runtime's operator, such as ``FusedConv``
    domain: str  # of that operator; empty for ONNX' own
    provider: str  # the execution provider that ran it
    # Names of the model's own nodes that it stands for, in their order; empty for a node that the
    # runtime added.
    sources: tuple[str, ...]
    # ``compute``, or what the runtime or a tool added: ``cast``, ``copy`` (memcpy between
    # devices), ``reorder`` (layout), ``transpose``, ``quantize`` (Q/DQ), ``shape``, and
    # ``control`` for If, Loop and Scan apart from their bodies.
    kind: str
    region: str  # the part of the model that it belongs to
    # What it takes of a run, all its calls together: its kernel and the step to the next one, less
    # what the profiler takes for itself.
    time_ns: float
    calls: int = 1  # calls in one run; more than 1 inside loops
    flops: int | None = None  # operations of one run; None where a shape is missing
    inputs: tuple[Operand, ...] = ()  # tensors read
    outputs: tuple[Operand, ...] = ()  # tensors written
    note: str = ""  # why it was added, or what is known of why it fell back to another provider
    span_ns: float = 0.0  # the same with the profiler's cost, as it was recorded
    kernel_ns: float = 0.0  # the runtime's own figure for the kernel alone
    main: str = ""  # of its sources the one that its time stands at

    def record(self, total_ns: float) -> dict[str, object]:
        """Return it as one flat row, times in us; `total_ns` is what its share is of."""
        return {
            "name": self.name,
            "op_type": self.op_type,
            "domain": self.domain,
            "provider": self.provider,
            "kind": self.kind,
            "region": self.region,
            "sources": " ".join(self.sources),
            "calls": self.calls,
            "time_us": self.time_ns / 1e3,
            "share": self.time_ns / total_ns,
            "span_us": self.span_ns / 1e3,
            "kernel_us": self.kernel_ns / 1e3,
            "flops": self.flops,
            "bytes": self.calls * sum(tensor.size for tensor in (*self.inputs, *self.outputs)),
            "inputs": ", ".join(map(str, self.inputs)),
            "outputs": ", ".join(map(str, self.outputs)),
            "note": self.note,
        }


@dataclass(frozen=True)
class Region:
    """A part of the model."""

    name: str  # a scope or pattern, such as ``encoder.layer.*``
    members: tuple[str, ...] = ()  # the scopes that the pattern joins; empty for one
    nodes: int = 0  # source nodes in it


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do at most with the threads of the profiled run, measured."""

    # Arithmetic (``float32``, ``int8``, ...) -> operations a second of a large matrix product in
    # the runtime's own kernels.
    flops: Mapping[str, float]
    # Bytes a second, read and written together, of a copy far larger than the caches.
    bandwidth: float
    overhead_ns: float  # the least time of a kernel that computes next to nothing
    threads: int  # threads that it was measured with
    read_bandwidth: float = 0.0  # bytes a second of a kernel that only reads; 0 where not measured
    # Bytes a second, read and written together, within the last-level cache; 0 where not measured.
    cache_bandwidth: float = 0.0
    cache_bytes: int = 0  # size of that cache; 0 where unknown
    # Figure -> how far the median round was above the best one's time, as a share.
    spread: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """What a group of kernels takes of a run."""

    time_ns: float  # together
    share: float  # of the time of all kernels
    kernels: int  # their number


@dataclass(frozen=True, repr=False)
class Profile(TableResult):
    """A profiled session.

    Attributes:
        kernels: In order of execution.
        runs: Profiled runs behind every time: the middle half of all by wall time.
        profiled_ns: Mean time of these runs, by the runtime's own clock.
        profiled_call_ns: The same seen from Python.
        plain_ns: Mean time of runs without the profiler, taken in turns with them, from Python.
        folded: Nodes of the model that cost nothing at run time: folded into constants, removed,
            or in a branch that was not taken.
        ceilings: None when they were not measured.
        machine: Where it was measured.
        regions: The parts of the model, the first in its order first.
        placement: Provider -> nodes it took, from the runtime's own record.
        fallbacks: Node that ran elsewhere than on the provider that was asked for -> what the
            placement shows of why.
        timeline: One run, call by call.
        batch: Samples in a run; 0 as the data has them.
        parallel: Nodes ran side by side: times may sum to more than the run.
        actions: What can be done about its bottlenecks, the largest possible gain first.
        integers: What became of the layers that the file gives integers; None where it gives none.
    """

    headline = ("model", "backend", "plain_ns", "attributed", "overhead", "placement")

    model: str
    backend: str
    kernels: tuple[Kernel, ...]
    runs: int
    profiled_ns: float
    plain_ns: float
    profiled_call_ns: float = 0.0
    folded: tuple[str, ...] = ()
    ceilings: Ceilings | None = None
    notes: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    placement: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    timeline: tuple[Slice, ...] = ()
    batch: int = 0
    parallel: bool = False
    actions: tuple[Action, ...] = ()
    integers: IntegerUse | None = None
    graph: str = ""

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return one flat row a kernel, in order of execution; times in us."""
        total = max(1.0, sum(kernel.time_ns for kernel in self.kernels))
        return [kernel.record(total) for kernel in self.kernels]

    @property
    def inside(self) -> float:
        """Share of the profiled run that the kernels take by the runtime's own figures."""
        return sum(kernel.kernel_ns for kernel in self.kernels) / max(1.0, self.profiled_ns)

    @property
    def coverage(self) -> float:
        """Share of the profiled run that the nodes' spans account for.

        Where nodes run one after another a span ends where the next begins: what can be missing
        is what comes before the first.
        """
        return sum(kernel.span_ns for kernel in self.kernels) / max(1.0, self.profiled_ns)

    @property
    def attributed(self) -> float:
        """Share of a plain call that the nodes' times account for; the rest is the call itself.

        The times are scaled to that: it says how much the call is, not how right they are.
        """
        return sum(kernel.time_ns for kernel in self.kernels) / max(1.0, self.plain_ns)

    @property
    def overhead(self) -> float:
        """Overhead of the profiler: profiled time of a call over its plain time, minus 1."""
        return (self.profiled_call_ns or self.profiled_ns) / max(1.0, self.plain_ns) - 1

    @property
    def mapped(self) -> float:
        """Share of the kernels other than added ones that name their source nodes."""
        computing = [kernel for kernel in self.kernels if kernel.kind in ("compute", "control")]
        return sum(bool(kernel.sources) for kernel in computing) / max(1, len(computing))

    def by(self, key: Literal["op_type", "region", "kind", "provider"]) -> dict[str, Share]:
        """Return the kernels' total time by one of their attributes, the longest first."""
        total = max(1.0, sum(kernel.time_ns for kernel in self.kernels))
        groups: dict[str, list[float]] = {}
        for kernel in self.kernels:
            groups.setdefault(getattr(kernel, key), []).append(kernel.time_ns)
        shares = {n: Share(sum(t), sum(t) / total, len(t)) for n, t in groups.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1].time_ns))


Kind: TypeAlias = Literal["fuse", "quantize", "added", "denormals", "threads"]

NO_STEP = "no transform yet"


@dataclass(frozen=True)
class Action:
    """One thing to do about a bottleneck."""

    kind: Kind  # what it is about
    title: str  # the bottleneck
    advice: str  # what to do, or why nothing can be done yet
    kernels: tuple[str, ...] = ()  # names of the kernels that it concerns, the longest first
    # Time that these kernels take of a run, or what of it can be gained at most; 0 where the
    # profile cannot tell.
    stake_ns: float = 0.0
    # Time that it would gain by the ceilings; None where nothing is estimated.
    estimate_ns: float | None = None
    # Spelling of the steps, in order; none where no step is known or none is needed.
    steps: tuple[str, ...] = ()
    backend: str = ""  # spelling of the backend with the setting; empty where it stays
    measured: Interval | None = None  # latency with it over latency without, once it was tried
    note: str = ""  # what became of trying it

    @property
    def does(self) -> str:
        """Return what to hand to `apply` or `--on`, or that there is nothing yet."""
        return " ".join(self.steps) or self.backend or NO_STEP
