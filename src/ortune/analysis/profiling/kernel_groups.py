"""Groups of kernels: which they are, what they take together, how they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ortune.core.profile import Kernel, Profile

_FEW = 3


def standing_for(profile: Profile, nodes: Iterable[str]) -> list[Kernel]:
    """Return the kernels that stand for some of these nodes and for no other."""
    wanted = frozenset(nodes)
    return [one for one in profile.kernels if one.sources and wanted.issuperset(one.sources)]


def time(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time_ns for kernel in kernels)


def names(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    return tuple(one.name for one in sorted(kernels, key=lambda one: -one.time_ns))


def named(kernels: Sequence[Kernel]) -> str:
    """Name the operators that take most of the time."""
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel.op_type] += int(kernel.time_ns)
    most = [op for op, _ in times.most_common(_FEW)]
    return ", ".join(most) + (", ..." if len(times) > _FEW else "")
