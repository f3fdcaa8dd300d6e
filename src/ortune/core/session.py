"""A loaded model, as a backend gives it, and what its runtime records of its runs."""

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
    """One tensor that a kernel reads or writes."""

    dtype: str  # in ONNX' spelling, such as ``float32``
    shape: tuple[int, ...]  # as seen at run time
    size: int  # bytes
    constant: bool = False  # an initializer: read in every run, written never

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Executed:
    """One node of the graph that a runtime executes, with its times, as a backend records it."""

    name: str  # the runtime's name for it
    op_type: str  # the runtime's operator
    domain: str = ""  # of that operator; empty for ONNX' own
    provider: str = ""  # the execution provider that ran it
    # Names of the executed graph's tensors that it reads; empty where one is left out.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()  # names of the tensors that it writes
    known: tuple[str, ...] = ()  # names of source nodes that the runtime itself says it stands for
    parent: str = ""  # name of the control-flow node whose body it is in; empty on top
    calls: int = 0  # calls in one run; 0 for a branch that was not taken
    # Time of a run from its start to the start of the next node, bodies excluded.
    span_ns: float = 0.0
    kernel_ns: float = 0.0  # the runtime's own figure of the kernel alone, bodies excluded
    inputs: tuple[Operand, ...] = ()  # what it reads, constants included
    outputs: tuple[Operand, ...] = ()  # what it writes

    @property
    def spent_ns(self) -> float:
        """What it takes of a run: the runtime's own figure, or else its span."""
        return self.kernel_ns or self.span_ns


@dataclass(frozen=True)
class Slice:
    """One call on the time line of one run."""

    index: int  # of the kernel
    start_ns: float  # since the start of the run
    kernel_ns: float  # duration, the bodies of control flow included


@dataclass(frozen=True)
class Recorded:
    """What a runtime recorded of its own runs."""

    nodes: tuple[Executed, ...]  # in order of execution; those that never ran come last
    runs: int  # runs behind the times, which are means over the middle half of the profiled runs
    wall_ns: float  # mean wall time of these runs, seen from outside
    run_ns: float  # the same by the runtime's own clock, without the call from Python
    timeline: tuple[Slice, ...] = ()  # the calls of one run
    constants: tuple[str, ...] = ()  # names of the executed graph's constants
    # Provider -> names of the nodes that it took, from the runtime's own record.
    placement: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parallel: bool = False  # nodes ran side by side: their times may sum to more than the run
    graph: bool = True  # whether the executed graph's tensors are known
    notes: tuple[str, ...] = ()  # what the reader must know


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
    """What a runtime made of the layers that a Q/DQ file gives integers."""

    layers: int  # convolutions and matrix products between quantize / dequantize pairs
    # Those that it computes in float all the same -> ns of a run.
    in_float: Mapping[str, float] = field(default_factory=dict)
    # Kernels that only change how numbers are stored, by operator -> ns of a run.
    beside: Mapping[str, float] = field(default_factory=dict)
