"""A profile as blocks: where the time goes, what limits it, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core import wording
from ortune.core.profile import Action, Profile, Share
from ortune.core.section import Bar, Bars, Block, Heading, Table, Text
from ortune.core.wording import milliseconds
from ortune.reporting.blocks import Part
from ortune.reporting.roofline import roofline

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
