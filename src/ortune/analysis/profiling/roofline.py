"""What limits each kernel, by the roofline model, and what there is to gain at most.

A kernel takes at least the longest of: its operations at the machine's peak for its arithmetic,
its bytes at the bandwidth of the level they come from, and the cost of starting a kernel. The
longest names what binds it. The ceilings are measured: see `ortune.measurement.peaks`.

Source: Williams, Waterman, Patterson: Roofline, CACM 2009, doi:10.1145/1498765.1498785.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ortune.core.profile import Ceilings, Kernel, Profile
from ortune.core.session import Operand

Bound: TypeAlias = Literal["compute", "bandwidth", "cache", "overhead", "unknown"]
BOUNDS: tuple[Bound, ...] = ("compute", "bandwidth", "cache", "overhead", "unknown")

REMOVABLE = frozenset({"cast", "copy", "reorder", "transpose", "quantize", "shape"})
"""Kinds that compute nothing that was asked for: all of their time is to be gained."""
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"})
"""Operators that hand their input on, or look at its shape alone."""
_PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})
"""Operators that read of their data only what they write."""
_MULTIPLIES = ("Conv", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "FullyConnected")
"""Operators, or parts of a runtime's names for them, that are nothing without their products."""
_PER_ELEMENT = {
    "LayerNormalization": 8,
    "SkipLayerNormalization": 9,
    "Sigmoid": 22,
    "QuickGelu": 24,
    **dict.fromkeys(("Exp", "Log", "Sin", "Cos"), 20),
    **dict.fromkeys(("Erf", "BiasSoftmax", "Tanh", "Softmax"), 25),
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), 30),
    "Pow": 40,
    "Mish": 45,
}
"""Operations an element of a polynomial of about ten multiply-adds and what goes with it."""
_FAR = 0.2
"""Share of the roof below which it is not the roof that holds a kernel back."""
_INTEGER = ("QLinear", "DynamicQuantize", "QGemm", "QAttention", "MatMulNBits")
"""How names of kernels begin that multiply integers; MatMulNBits may, so the higher peak holds."""


class Roofs(NamedTuple):
    """The least times of a kernel by each of its limits, in ns; all its calls in a run together.

    Attributes:
        compute: Its operations at the peak of its arithmetic; 0 where they are not known.
        bandwidth: Its bytes that come from or go to memory.
        cache: Its bytes within the last-level cache.
        overhead: Starting it.
    """

    compute: float
    bandwidth: float
    cache: float
    overhead: float

    @property
    def bound(self) -> Bound:
        """The longest of them; of equal ones the first."""
        return BOUNDS[self.index(max(self))]


@dataclass(frozen=True)
class KernelRoofline:
    """What limits a kernel."""

    kernel: Kernel
    bound: Bound  # what it would be limited by at its best; ``unknown`` without its tensors
    arithmetic: str  # key of the peak that it is held against
    roofs: Roofs  # least time by each limit
    # What it would take at the roof; its own time where that is shorter, or where the roof is not
    # known.
    ideal_ns: float
    share: float  # of the roof reached, at most 1: ideal over measured time
    # Removing it gains at most this, if it is removable; else making it as fast as the machine
    # allows does.
    gain_ns: float

    @property
    def removable(self) -> bool:
        """Whether it may go altogether."""
        return self.kernel.kind in REMOVABLE

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity; None where nothing is computed or moved."""
        moved = sum(_count_bytes(self.kernel)) * self.kernel.calls
        return self.kernel.flops / moved if self.kernel.flops and moved else None

    @property
    def flops_per_second(self) -> float | None:
        """Operations a second that were reached; None where nothing is computed."""
        kernel = self.kernel
        return 1e9 * kernel.flops / kernel.time_ns if kernel.flops and kernel.time_ns else None

    def __str__(self) -> str:
        gain = f"{self.gain_ns / 1e6:.3g} ms"
        if self.removable:
            return f"{self.bound} bound; removing this gains at most {gain}"
        if self.bound == "unknown":
            return "not judged: shapes or sizes are missing"
        where = (
            f"at {self.share:.0%} of roofline ({self.ideal_ns / 1e6:.3g} ms there, {gain} less)"
        )
        far = ": limited by its implementation" if self.share < _FAR else ""
        return f"{self.bound} bound, {where}{far}"


def verdicts(profile: Profile) -> tuple[KernelRoofline, ...]:
    """Judge every kernel, in the profile's order; none where no ceilings were measured."""
    if profile.ceilings is None:
        return ()
    constant_bytes = sum(
        operand.size for kernel in profile.kernels for operand in kernel.inputs if operand.constant
    )
    cold = constant_bytes > profile.ceilings.cache_bytes
    return tuple(_judge_kernel(kernel, profile.ceilings, cold) for kernel in profile.kernels)


def sum_time_by_bound(kernel_verdicts: Iterable[KernelRoofline]) -> dict[Bound, float]:
    """Return the ns of a run spent in kernels of each bound, all bounds in their order."""
    times = dict.fromkeys(BOUNDS, 0.0)
    for verdict in kernel_verdicts:
        times[verdict.bound] += verdict.kernel.time_ns
    return times


def find_arithmetic(kernel: Kernel) -> str:
    """Return what a kernel multiplies in: int8, a 16-bit float, or float32."""
    kinds = {operand.dtype for operand in kernel.inputs if len(operand.shape) >= 2}
    if "Integer" in kernel.op_type or kernel.op_type.startswith(_INTEGER):
        return "int8"
    if kinds and kinds <= {"int8", "uint8"}:
        return "int8"
    half = kinds & {"float16", "bfloat16"}
    return min(half) if half else "float32"


def compute_roofs(kernel: Kernel, ceilings: Ceilings, *, cold: bool) -> Roofs:
    """Return a kernel's least time by each limit.

    Activations that fit the last-level cache with everything else that a call touches were just
    written there; constants are found there too unless all constants of the model together do not
    fit: then each run reads them from memory.

    Args:
        cold: The model's constants do not stay in the cache from run to run.
    """
    constant, moved = _count_bytes(kernel)
    fits = bool(ceilings.cache_bandwidth) and constant + moved <= ceilings.cache_bytes
    from_memory = constant if cold and fits else 0 if fits else constant * kernel.calls
    near = constant * kernel.calls - from_memory + moved * kernel.calls if fits else 0
    far = 0 if fits else moved * kernel.calls
    reading = ceilings.read_bandwidth or ceilings.bandwidth
    peak = ceilings.flops.get(find_arithmetic(kernel)) or ceilings.flops.get("float32")
    peak = peak or max(ceilings.flops.values(), default=0.0)
    # The operations of a run, those inside an element's function counted.
    operations = kernel.flops or 0
    if kernel.op_type in _PER_ELEMENT:
        elements = max((math.prod(operand.shape) for operand in kernel.outputs), default=0)
        operations = kernel.calls * _PER_ELEMENT[kernel.op_type] * elements
    return Roofs(
        compute=1e9 * operations / peak if peak else 0.0,
        bandwidth=1e9 * (from_memory / reading + far / ceilings.bandwidth),
        cache=1e9 * near / ceilings.cache_bandwidth if fits else 0.0,
        overhead=ceilings.overhead_ns * kernel.calls,
    )


def _judge_kernel(kernel: Kernel, ceilings: Ceilings, cold: bool) -> KernelRoofline:
    least_times = compute_roofs(kernel, ceilings, cold=cold)
    product = any(word in kernel.op_type for word in _MULTIPLIES)
    can_judge = bool(kernel.inputs or kernel.outputs) and not (product and kernel.flops is None)
    ideal = min(max(least_times), kernel.time_ns) if can_judge else kernel.time_ns
    gain = kernel.time_ns if kernel.kind in REMOVABLE else kernel.time_ns - ideal
    bound: Bound = least_times.bound if can_judge else "unknown"
    arithmetic = find_arithmetic(kernel)
    share = ideal / kernel.time_ns if kernel.time_ns > 0 else 1.0
    return KernelRoofline(kernel, bound, arithmetic, least_times, ideal, share, gain)


def _count_bytes(kernel: Kernel) -> tuple[int, int]:
    """Return the bytes of a call: constants, and all other tensors read and written."""
    if kernel.op_type in _VIEWS:
        return 0, 0
    written = _sum_sizes(kernel.outputs)
    if kernel.op_type in _PICKS:
        indices = [operand for operand in kernel.inputs if operand.dtype in ("int32", "int64")]
        return 0, 2 * written + min(_sum_sizes(indices), written)
    constant = _sum_sizes(operand for operand in kernel.inputs if operand.constant)
    return constant, _sum_sizes(
        operand for operand in kernel.inputs if not operand.constant
    ) + written


def _sum_sizes(operands: Iterable[Operand]) -> int:
    return sum(operand.size for operand in operands)
