"""A profile as blocks: where the time goes, what limits it, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ortune.bundle.replacing import replacing
from ortune.core.profile import Ceilings, Profile, Share
from ortune.core.section import Bar, Bars, Block, Heading, Line, Lines, Point, Table, Text
from ortune.reporting.blocks import Part
from ortune.reporting.html import page
from ortune.study.actions import Action
from ortune.study.roofline import Bound, Verdict, by_bound, verdicts

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
_FOOT = (
    "Kernel times are the runtime's own; what a kernel would gain is the most that the machine "
    "allows, not a promise."
)


def parts(profile: Profile, actions: Sequence[Action] = ()) -> tuple[Part, ...]:
    """Return the report of a profile; what was not measured is left out."""
    made = (
        Part("time", tuple(_times(profile))),
        Part("roofline", tuple(roofline(profile))),
        Part("actions", tuple(acting(actions, profile))),
        Part("notes", _notes(profile)),
    )
    return tuple(part for part in made if part.blocks)


def html(profile: Profile, actions: Sequence[Action] = ()) -> str:
    """Return the report as one offline page."""
    return page(f"{Path(profile.model).name} on {profile.backend}", parts(profile, actions), _FOOT)


def write(profile: Profile, actions: Sequence[Action], path: Path, *, force: bool = False) -> Path:
    """Write the page.

    Raises:
        OrtuneError: The path is taken or cannot be written.
    """
    with replacing(path, force=force, sources=[Path(profile.model)]) as draft:
        draft.write_text(html(profile, actions), encoding="utf-8")
    return path


def _times(profile: Profile) -> list[Block]:
    made: list[Block] = [
        Heading("Where the time goes"),
        Text(
            f"A run takes {_ms(profile.plain_ns)} ms; {len(profile.kernels)} kernels account for "
            f"{profile.coverage:.1%} of the profiled run. The profiler adds "
            f"{profile.overhead:.1%}, which is taken off."
        ),
        Heading("By operator"),
        _shares(profile.by("op_type")),
    ]
    if len(profile.regions) > 1:
        made += [Heading("By region"), _shares(profile.by("region"))]
    if len(profile.by("kind")) > 1:
        made += [Heading("By kind"), _shares(profile.by("kind"))]
    return made


def _shares(found: dict[str, Share]) -> Bars:
    ranked = list(found.items())
    shown = [
        Bar(name or "(none)", (one.time_ns / 1e6,), f"{_ms(one.time_ns)} ms, {one.share:.1%}")
        for name, one in ranked[:_TOP]
    ]
    rest = sum(one.time_ns for _, one in ranked[_TOP:])
    if rest:
        share = sum(one.share for _, one in ranked[_TOP:])
        label = f"{len(ranked) - _TOP} more"
        shown.append(Bar(label, (rest / 1e6,), f"{_ms(rest)} ms, {share:.1%}", "lose"))
    return Bars("ms a run", tuple(shown))


def roofline(profile: Profile) -> list[Block]:
    """Return what limits the kernels: a summary, the plot, and the kernels with most to gain."""
    judged = verdicts(profile)
    if profile.ceilings is None or not judged:
        return []
    spent, total = by_bound(judged), max(1.0, sum(one.kernel.time_ns for one in judged))
    ideal = sum(one.ideal_ns for one in judged if not one.removable)
    ranked = sorted(judged, key=lambda one: -one.gain_ns)[:_TOP]
    return [
        Heading("What limits it"),
        Text(
            f"With every kernel at its roof, and casts, copies, Q/DQ and transposes gone, the "
            f"kernels would take {_ms(ideal)} of {_ms(total)} ms: the most that this machine "
            "allows for this graph in this arithmetic."
        ),
        _bounds(spent, total),
        _plot(judged, profile.ceilings),
        _ceilings(profile.ceilings),
        Heading("The kernels with most to gain"),
        Table(
            ("kernel", "operator", "bound", "of the roof", "ms", "at the roof", "gains at most"),
            tuple(_row(one) for one in ranked),
        ),
    ]


def _bounds(spent: Mapping[Bound, float], total: float) -> Bars:
    """Draw the time by what limits it."""
    words = {**dict(_MEANING), "unknown": "not judged"}
    shown = [(name, time) for name, time in spent.items() if time > 0]
    bars = (Bar(words[n], (t / 1e6,), f"{_ms(t)} ms, {t / total:.1%}") for n, t in shown)
    return Bars("ms a run", tuple(bars))


def _plot(judged: Sequence[Verdict], ceilings: Ceilings) -> Lines:
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


def _row(one: Verdict) -> tuple[str, ...]:
    kernel = one.kernel
    return (
        ", ".join(kernel.sources[:2]) or kernel.name,
        kernel.op_type,
        one.bound,
        f"{one.share:.0%}",
        _ms(kernel.time_ns),
        "-" if one.removable else _ms(one.ideal_ns),
        _ms(one.gain_ns),
    )


def acting(actions: Sequence[Action], profile: Profile) -> list[Block]:
    """Return what may be done, the most at stake first."""
    if not actions:
        return []
    tried = any(one.measured or one.note for one in actions)
    columns = ("bottleneck", "at stake, ms", "estimate, ms", *(["measured"] if tried else []))
    rows = [
        (
            one.title,
            _ms(one.stake_ns) if one.stake_ns else "not known",
            "-" if one.estimate_ns is None else f"-{_ms(one.estimate_ns)}",
            *([_measured(one)] if tried else []),
            one.does,
            one.advice,
        )
        for one in actions
    ]
    text = (
        "At stake is the time of the kernels concerned: no more can be gained. An estimate is the "
        "ratio of the ceilings, not a measurement"
    )
    text += (
        "; measured is latency with the action over latency without it, at 99 %." if tried else "."
    )
    return [
        Heading("What can be done"),
        Text(text),
        Table((*columns, "do", "why"), tuple(rows)),
    ]


def _measured(one: Action) -> str:
    return str(one.measured) if one.measured is not None else one.note or "not tried"


def _notes(profile: Profile) -> tuple[Block, ...]:
    if not profile.notes:
        return ()
    return (Heading("Notes"), *(Text(text) for text in profile.notes))


def _ms(ns: float) -> str:
    """Write ms with about three significant digits, without exponents."""
    ms = ns / 1e6
    digits = next((n for n, limit in enumerate((100, 10, 1, 0.1)) if ms >= limit), 4)
    return f"{ms:.{digits}f}"
