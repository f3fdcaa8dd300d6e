"""A profile as flat rows, one a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortune.core.profile import Kernel, Profile
from ortune.core.session import Operand


def rows(profile: Profile) -> list[dict[str, Any]]:
    """Return one flat row a kernel, in order of execution; times in microseconds."""
    total = max(1.0, sum(kernel.time_ns for kernel in profile.kernels))
    return [row(kernel, total) for kernel in profile.kernels]


def row(kernel: Kernel, total: float) -> dict[str, Any]:
    """Return one row; `total` is the time of all kernels, which shares are of."""
    return {
        "name": kernel.name,
        "op_type": kernel.op_type,
        "domain": kernel.domain,
        "provider": kernel.provider,
        "kind": kernel.kind,
        "region": kernel.region,
        "sources": " ".join(kernel.sources),
        "calls": kernel.calls,
        "time_us": kernel.time_ns / 1e3,
        "share": kernel.time_ns / total,
        "span_us": kernel.span_ns / 1e3,
        "kernel_us": kernel.kernel_ns / 1e3,
        "flops": kernel.flops,
        "bytes": kernel.traffic,
        "inputs": _shapes(kernel.inputs),
        "outputs": _shapes(kernel.outputs),
        "note": kernel.note,
    }


def _shapes(operands: Sequence[Operand]) -> str:
    return ", ".join(f"{one.dtype}[{'x'.join(map(str, one.shape))}]" for one in operands)
