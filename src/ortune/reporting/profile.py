"""A profile as blocks: where the time goes, what limits it, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.analysis.profiling.roofline import Bound, KernelRoofline, by_bound, verdicts
from ortune.core import wording
from ortune.core.profile import Action, Ceilings, Profile, Share
from ortune.core.section import Bar, Bars, Block, Heading, Line, Lines, Point, Table, Text
from ortune.core.wording import milliseconds
from ortune.reporting.blocks import Part

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


TOP = 15
_SOURCES = 3


def parts(profile: Profile, top: int | None = TOP) -> tuple[Part, ...]:
    """Return the report of a profile; what was not measured is left out.

    Args:
        top: Longest kernels, operators and regions that are listed; None lists all.
    """
    made = (
        Part("time", tuple(_times(profile, top))),
        Part("placement", tuple(_placement(profile))),
        Part("roofline", tuple(roofline(profile))),
        Part("actions", tuple(acting(profile.actions))),
        Part("notes", _notes(profile)),
    )
    return tuple(part for part in made if part.blocks)


def _times(profile: Profile, top: int | None) -> list[Block]:
    outside = max(0.0, 1 - profile.attributed)
    made: list[Block] = [
        Heading("Where the time goes"),
        Text(
            f"A run takes {milliseconds(profile.plain_ns)} ms on {profile.backend}. "
            f"Its {wording.count(len(profile.kernels), 'kernel')} took "
            f"{profile.inside:.1%} of the profiled run by the runtime's own figures, "
            f"{profile.coverage:.1%} with the steps between them. The profiler adds "
            f"{profile.overhead:.1%}, which is taken off. "
            f"{outside:.1%} of a call is outside of the kernels."
        ),
        Heading("By operator"),
        _shares(profile.by("op_type"), top),
    ]
    if len(profile.regions) > 1:
        made += [Heading("By region"), _shares(profile.by("region"), top)]
    if len(profile.by("kind")) > 1:
        made += [Heading("By kind"), _shares(profile.by("kind"), top)]
    return [*made, Heading("The longest kernels"), _longest(profile, top)]


def _shares(found: dict[str, Share], top: int | None) -> Bars:
    ranked = list(found.items())
    first = ranked[:top]
    others = [one for _, one in ranked[len(first) :]]
    shown = [
        Bar(
            name or "(none)",
            (one.time_ns / 1e6,),
            f"{milliseconds(one.time_ns)} ms, {one.share:.1%}",
        )
        for name, one in first
    ]
    if rest := sum(one.time_ns for one in others):
        share = sum(one.share for one in others)
        label = f"{len(others)} more"
        shown.append(Bar(label, (rest / 1e6,), f"{milliseconds(rest)} ms, {share:.1%}", "lose"))
    return Bars("ms a run", tuple(shown))


def _longest(profile: Profile, top: int | None) -> Table:
    ranked = sorted(profile.kernels, key=lambda kernel: -kernel.time_ns)[:top]
    total = max(1.0, sum(kernel.time_ns for kernel in profile.kernels))
    rows = [
        (
            _sources(one.sources) or one.note or one.name,
            one.op_type,
            one.region,
            milliseconds(one.time_ns),
            f"{one.time_ns / total:.1%}",
        )
        for one in ranked
    ]
    return Table(("stands for", "operator", "region", "ms", "share"), tuple(rows))


def _sources(names: Sequence[str]) -> str:
    more = len(names) - _SOURCES
    return ", ".join(names[:_SOURCES]) + (f" and {more} more" if more > 0 else "")


def _placement(profile: Profile) -> list[Block]:
    """Return which provider took what; the nodes that fell back with what is known of why."""
    times = profile.by("provider")
    providers = dict.fromkeys((*profile.placement, *times))
    if len(providers) < 2 and not profile.fallbacks:
        return [
            Text(f"placement: {name} {wording.count(n, 'node')}")
            for name, n in profile.placement.items()
        ]
    nothing = Share(0.0, 0.0, 0)
    rows = [
        (
            name or "(not recorded)",
            str(profile.placement.get(name, "-")),
            str((one := times.get(name, nothing)).kernels),
            milliseconds(one.time_ns),
            f"{one.share:.1%}",
        )
        for name in providers
    ]
    made: list[Block] = [
        Heading("Where it ran"),
        Table(("provider", "nodes taken", "kernels", "ms", "share"), tuple(rows)),
    ]
    if profile.fallbacks:
        made.append(Table(("fell back", "why"), tuple(profile.fallbacks.items())))
    return made


def acting(actions: Sequence[Action]) -> list[Block]:
    """Return what may be done, the largest possible gain first."""
    if not actions:
        return []
    tried = any(one.measured or one.note for one in actions)
    columns = ("bottleneck", "at most, ms", "estimate, ms", *(["measured"] if tried else []))
    rows = [
        (
            one.title,
            milliseconds(one.stake_ns) if one.stake_ns else "not known",
            "-" if one.estimate_ns is None else f"-{milliseconds(one.estimate_ns)}",
            *([_measured(one)] if tried else []),
            one.does,
            one.advice,
        )
        for one in actions
    ]
    text = (
        "At most is the time of the kernels concerned: no more can be gained in them. An "
        "estimate is the ratio of the ceilings, not a measurement"
    )
    text += (
        "; measured is latency with the action over latency without it, at 99 %." if tried else "."
    )
    return [Heading("What can be done"), Text(text), Table((*columns, "do", "why"), tuple(rows))]


def _measured(one: Action) -> str:
    return str(one.measured) if one.measured is not None else one.note or "not tried"


def _notes(profile: Profile) -> tuple[Block, ...]:
    if not profile.notes:
        return ()
    return (Heading("Notes"), *(Text(text) for text in profile.notes))
