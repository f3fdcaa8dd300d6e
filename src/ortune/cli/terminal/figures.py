"""How figures and shapes are written in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortune.core.trial import Interval


def milliseconds(ns: float | None) -> str:
    """Write nanoseconds as milliseconds; a dash where the samples support no such figure."""
    return "-" if ns is None else f"{ns / 1e6:.{1 if ns >= 1e8 else 2 if ns >= 1e7 else 3}f}"


def megabytes(count: float | None) -> str:
    """Write bytes as MB."""
    return "-" if count is None else f"{count / 1e6:.1f}"


def figure(value: float | None) -> str:
    """Write a number by its size."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def interval(found: Interval | None) -> str:
    """Write a ratio with the ends of its interval."""
    if found is None:
        return "-"
    if found.low == found.high == 1:
        return "1"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def size(count: float) -> str:
    """Write a number of bytes with a unit of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def amount(count: float) -> str:
    """Write a count with a prefix: 1.23 M."""
    for prefix in ("", " k", " M", " G", " T"):
        if abs(count) < 1000 or prefix == " T":
            return f"{count:g}" if prefix == "" else f"{count:.2f}{prefix}"
        count /= 1000
    raise AssertionError


def sides(shape: tuple[int | str | None, ...] | None) -> str:
    """Write a shape, or what is known of one."""
    if shape is None:
        return "any rank"
    if not shape:
        return "scalar"
    return " x ".join("?" if dim is None else str(dim) for dim in shape)
