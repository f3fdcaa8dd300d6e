"""A loaded model, as a backend gives it, and what its runtime records of its runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from ortune.core.hardware.cpus import read_queue_wait_ns

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Name -> array. The batch dimension, where there is one, comes first."""


class Session(Protocol):
    """A loaded model. Workers and the engine are its only owners."""

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once and return every output by name; several threads may run at once."""
        ...

    def placement(self) -> Mapping[str, int]:
        """Execution provider -> nodes it took, from the runtime's own record; empty if unknown."""
        ...

    def clock(self) -> int:
        """Monotonic time in nanoseconds; a scripted backend brings its own."""
        ...

    def waited(self) -> int:
        """Nanoseconds that threads stood in the run queue so far, -1 where unknown."""
        ...


@runtime_checkable
class DeviceTimed(Session, Protocol):
    """A session on a device with memory of its own: computing is timed apart from copying.

    `Session.run` is the whole way of a call: inputs copied there, computed, outputs copied back.
    """

    def stage(self, feeds: Tensors) -> None:
        """Copy inputs to the device and make room for outputs, for the next calls of `compute`."""
        ...

    def compute(self) -> None:
        """Run once on what was staged; returns when the device is done."""
        ...


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

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Executed:
    """One node of the graph that a runtime executes, with its times, as a backend records it.

    Attributes:
        name: The runtime's name for it.
        op_type: The runtime's operator.
        domain: Of that operator; empty for ONNX' own.
        provider: The execution provider that ran it.
        reads: Names of the executed graph's tensors that it reads; empty where one is left out.
        writes: Names of the tensors that it writes.
        known: Names of source nodes that the runtime itself says it stands for.
        parent: Name of the control-flow node whose body it is in; empty on top.
        calls: Calls in one run; 0 for a branch that was not taken.
        span_ns: Time of a run from its start to the start of the next node, bodies excluded.
        kernel_ns: The runtime's own figure of the kernel alone, bodies excluded.
        inputs: What it reads, constants included.
        outputs: What it writes.
    """

    name: str
    op_type: str
    domain: str = ""
    provider: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    parent: str = ""
    calls: int = 0
    span_ns: float = 0.0
    kernel_ns: float = 0.0
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()

    @property
    def spent_ns(self) -> float:
        """What it takes of a run: the runtime's own figure, or else its span."""
        return self.kernel_ns or self.span_ns


@dataclass(frozen=True)
class Slice:
    """One call on the time line of one run.

    Attributes:
        index: Of the kernel.
        start_ns: Since the start of the run.
        kernel_ns: Duration, the bodies of control flow included.
    """

    index: int
    start_ns: float
    kernel_ns: float


@dataclass(frozen=True)
class Recorded:
    """What a runtime recorded of its own runs.

    Attributes:
        nodes: In order of execution; those that never ran come last.
        runs: Runs behind the times, which are means over the middle half of the profiled runs.
        wall_ns: Mean wall time of these runs, seen from outside.
        run_ns: The same by the runtime's own clock, without the call from Python.
        timeline: The calls of one run.
        constants: Names of the executed graph's constants.
        placement: Provider -> names of the nodes that it took, from the runtime's own record.
        parallel: Nodes ran side by side: their times may sum to more than the run.
        graph: Whether the executed graph's tensors are known.
        notes: What the reader must know.
    """

    nodes: tuple[Executed, ...]
    runs: int
    wall_ns: float
    run_ns: float
    timeline: tuple[Slice, ...] = ()
    constants: tuple[str, ...] = ()
    placement: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parallel: bool = False
    graph: bool = True
    notes: tuple[str, ...] = ()


@runtime_checkable
class Recording(Session, Protocol):
    """A session whose runtime writes down what every node takes."""

    def recorded(self, runs: int) -> Recorded:
        """End the recording and return the last `runs` runs; it can be asked once."""
        ...


class InProcess:
    """Clock, run-queue time and placement of a session."""

    def placement(self) -> Mapping[str, int]:
        return {}

    def clock(self) -> int:
        return time.perf_counter_ns()

    def waited(self) -> int:
        return read_queue_wait_ns()


@dataclass(frozen=True)
class IntegerUse:
    """What a runtime made of the layers that a Q/DQ file gives integers.

    Attributes:
        layers: Convolutions and matrix products between quantize / dequantize pairs.
        in_float: Those that it computes in float all the same -> ns of a run.
        beside: Kernels that only change how numbers are stored, by operator -> ns of a run.
    """

    layers: int
    in_float: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
