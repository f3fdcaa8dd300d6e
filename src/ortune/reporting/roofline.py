"""A profile's roofline as report blocks: limits, the plot, and the possible gains."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.analysis.profiling.roofline import Bound, KernelRoofline, by_bound, verdicts
from ortune.core.profile import Ceilings, Profile
from ortune.core.section import Bar, Bars, Block, Heading, Line, Lines, Point, Table, Text
from ortune.core.wording import milliseconds

_TOP = 15
_DOTS = 300
"""Marks of the roofline plot at most, the longest kernels first."""
_NAMED = 6
_MEANING: tuple[tuple[Bound, str], ...] = (
    ("compute", "compute bound"),
    ("bandwidth", "bandwidth bound"),
    ("cache", "cache bound"),
    ("overhead", "overhead bound"),
)


def roofline(profile: Profile) -> list[Block]:
    """Return what limits the kernels: a summary, the plot, and the kernels with most to gain."""
    judged = verdicts(profile)
    if profile.ceilings is None or not judged:
        return []
    spent, total = by_bound(judged), max(1.0, sum(one.kernel.time_ns for one in judged))
    ideal = sum(one.ideal_ns for one in judged if not one.removable)
    ranked = sorted(judged, key=lambda one: -one.gain_ns)[:_TOP]
    words = {**dict(_MEANING), "unknown": "not judged"}
    shown = [(name, time) for name, time in spent.items() if time > 0]
    bars = (Bar(words[n], (t / 1e6,), f"{milliseconds(t)} ms, {t / total:.1%}") for n, t in shown)
    return [
        Heading("What limits it"),
        Text(
            f"With every kernel at its roof, and casts, copies, Q/DQ and transposes gone, the "
            f"kernels would take {milliseconds(ideal)} of {milliseconds(total)} ms: the most that "
            "this machine allows for this graph in this arithmetic. Kernels that are not judged "
            "count in full."
        ),
        Bars("ms a run", tuple(bars)),
        _plot(judged, profile.ceilings),
        _ceilings(profile.ceilings),
        Heading("The kernels with most to gain"),
        Table(
            ("kernel", "operator", "bound", "of the roof", "ms", "at the roof", "gains at most"),
            tuple(_row(one) for one in ranked),
        ),
    ]


def _plot(judged: Sequence[KernelRoofline], ceilings: Ceilings) -> Lines:
    ranked = sorted(judged, key=lambda one: -one.kernel.time_ns)[:_DOTS]
    marks = [
        Point(one.flops_per_byte, one.flops_per_second, one.kernel.op_type, one.bound)
        for one in ranked
        if one.flops_per_byte and one.flops_per_second
    ]
    xs = [mark.x for mark in marks] or [1.0]
    used = {one.arithmetic for one in judged}
    roofs: list[Line] = []
    low, high = min(0.1, *xs), max(100.0, *xs)
    for index, (name, peak) in enumerate(sorted(ceilings.flops.items())):
        if name in used or index == 0:
            knee = peak / ceilings.bandwidth
            points = ((low, low * ceilings.bandwidth), (knee, peak), (max(high, 2 * knee), peak))
            roofs.append(Line(f"{name} {peak / 1e9:.3g} G/s, memory", points, "roof"))
    if ceilings.cache_bandwidth:
        top = max(line.points[-1][1] for line in roofs)
        knee = top / ceilings.cache_bandwidth
        start = (low, low * ceilings.cache_bandwidth)
        roofs.append(Line("within the cache", (start, (knee, top)), "lose"))
    return Lines(
        "operations a byte",
        "operations a second",
        tuple(roofs),
        tuple(marks),
        log_x=True,
        log_y=True,
        legend=_MEANING,
        named=_NAMED,
    )


def _ceilings(found: Ceilings) -> Table:
    def row(name: str, value: str, key: str) -> tuple[str, ...]:
        spread = found.spread.get(key)
        return (name, value, "-" if spread is None else f"{spread:.0%}")

    rows = [
        row(f"{name} arithmetic", f"{v / 1e9:.4g} G/s", name) for name, v in found.flops.items()
    ]
    rows.append(row("memory, read and write", f"{found.bandwidth / 1e9:.3g} GB/s", "bandwidth"))
    if found.read_bandwidth:
        text = f"{found.read_bandwidth / 1e9:.3g} GB/s"
        rows.append(row("memory, read only", text, "read_bandwidth"))
    if found.cache_bandwidth:
        size = f"{found.cache_bytes / 2**20:.3g} MiB cache, read and write"
        rows.append(row(size, f"{found.cache_bandwidth / 1e9:.3g} GB/s", "cache_bandwidth"))
    rows.append(row("least time of a kernel", f"{found.overhead_ns:.0f} ns", "overhead_ns"))
    columns = (f"ceiling with {found.threads} thread(s)", "best", "median round above it")
    return Table(columns, tuple(rows))


def _row(one: KernelRoofline) -> tuple[str, ...]:
    kernel = one.kernel
    return (
        ", ".join(kernel.sources[:2]) or kernel.name,
        kernel.op_type,
        one.bound,
        "-" if one.bound == "unknown" else f"{one.share:.0%}",
        milliseconds(kernel.time_ns),
        "-" if one.removable else milliseconds(one.ideal_ns),
        milliseconds(one.gain_ns),
    )
