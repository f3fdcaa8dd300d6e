"""Where the time of a run goes, kernel by kernel, in terms of the model's own nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Operand:
    """One tensor that a kernel reads or writes.

    Attributes:
        dtype: In ONNX' spelling, such as ``float32``.
        shape: As seen at run time.
        size: Bytes.
        constant: An initializer: read in every run, written never.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    constant: bool = False


@dataclass(frozen=True)
class Kernel:
    """One node of the graph as the runtime executes it.

    Attributes:
        name: The runtime's name for it.
        op_type: The runtime's operator, such as ``FusedConv``.
        domain: Of that operator; empty for ONNX' own.
        provider: The execution provider that ran it.
        sources: Names of the model's own nodes that it stands for, in their order; empty for a
            node that the runtime added.
        kind: ``compute``, or what the runtime or a tool added: ``cast``, ``copy`` (memcpy between
            devices), ``reorder`` (layout), ``transpose``, ``quantize`` (Q/DQ), ``shape``.
        region: The part of the model that it belongs to.
        time_ns: Median time of a run, all its calls in the run together.
        calls: Calls in one run; more than 1 inside loops.
        flops: Operations of one run; None where a shape is missing.
        inputs: Tensors read.
        outputs: Tensors written.
        note: Why it was added, or why it fell back to another provider.
    """

    name: str
    op_type: str
    domain: str
    provider: str
    sources: tuple[str, ...]
    kind: str
    region: str
    time_ns: float
    calls: int = 1
    flops: int | None = None
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    note: str = ""

    @property
    def traffic(self) -> int:
        """Bytes that must be read and written at least once in a run."""
        return self.calls * sum(one.size for one in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do at most with the threads of the profiled run, measured.

    Attributes:
        flops: Arithmetic (``float32``, ``int8``, ...) -> operations a second of a large matrix
            product in the runtime's own kernels.
        bandwidth: Bytes a second, read and written together, of a copy far larger than the caches.
        overhead_ns: The least time of a kernel that computes next to nothing.
        threads: Threads that it was measured with.
    """

    flops: Mapping[str, float]
    bandwidth: float
    overhead_ns: float
    threads: int


@dataclass(frozen=True)
class Profile:
    """A profiled session.

    Attributes:
        model: Path as given.
        backend: Spelling of the backend.
        kernels: In order of execution.
        runs: Profiled runs behind every median.
        profiled_ns: Median wall time of a profiled run.
        plain_ns: Median wall time of a run of the same session without the profiler.
        folded: Nodes of the model that cost nothing at run time: folded into constants or removed.
        ceilings: None when they were not measured.
        notes: What the reader must know.
    """

    model: str
    backend: str
    kernels: tuple[Kernel, ...]
    runs: int
    profiled_ns: float
    plain_ns: float
    folded: tuple[str, ...] = ()
    ceilings: Ceilings | None = None
    notes: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Share of the profiled run's wall time that the kernels' times account for."""
        return sum(kernel.time_ns for kernel in self.kernels) / max(1.0, self.profiled_ns)

    @property
    def overhead(self) -> float:
        """What the profiler costs: profiled over plain run time, less 1."""
        return self.profiled_ns / max(1.0, self.plain_ns) - 1
