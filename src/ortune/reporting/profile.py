"""A profile as blocks: where the time goes, what limits it, and what to do about it."""

from collections.abc import Sequence

from ortune.analysis.profiling.roofline import Bound, KernelRoofline, sum_time_by_bound, verdicts
from ortune.core.profile import Action, Ceilings, Profile, Share
from ortune.core.section import (
    Bar,
    Bars,
    Block,
    Heading,
    Line,
    Lines,
    Pill,
    Point,
    Table,
    Text,
    Tile,
)
from ortune.core.wording import format_count, format_integer_use, format_milliseconds, join_names
from ortune.reporting.blocks import Part, summarize

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


def build_roofline_blocks(profile: Profile) -> list[Block]:
    """Return what limits the kernels: a summary, the plot, and the kernels with most to gain."""
    judged, ceilings = verdicts(profile), profile.ceilings
    if ceilings is None or not judged:
        return []
    spent = sum_time_by_bound(judged)
    total = max(1.0, sum(entry.kernel.time_ns for entry in judged))
    ideal = sum(entry.ideal_ns for entry in judged if not entry.removable)
    ranked = sorted(judged, key=lambda entry: -entry.gain_ns)[:_TOP]
    words = {**dict(_MEANING), "unknown": "not judged"}
    shown = [(name, time) for name, time in spent.items() if time > 0]
    bars = (
        Bar(words[n], (t / 1e6,), f"{format_milliseconds(t)} ms, {t / total:.1%}")
        for n, t in shown
    )

    figures = [
        (f"{name} arithmetic", f"{peak / 1e9:.4g} G/s", name)
        for name, peak in ceilings.flops.items()
    ]
    bandwidth = f"{ceilings.bandwidth / 1e9:.3g} GB/s"
    figures.append(("memory, read and write", bandwidth, "bandwidth"))
    if ceilings.read_bandwidth:
        bandwidth = f"{ceilings.read_bandwidth / 1e9:.3g} GB/s"
        figures.append(("memory, read only", bandwidth, "read_bandwidth"))
    if ceilings.cache_bandwidth:
        size = f"{ceilings.cache_bytes / 2**20:.3g} MiB cache, read and write"
        bandwidth = f"{ceilings.cache_bandwidth / 1e9:.3g} GB/s"
        figures.append((size, bandwidth, "cache_bandwidth"))
    shortest = f"{ceilings.overhead_ns:.0f} ns"
    figures.append(("shortest time of a kernel", shortest, "overhead_ns"))
    times = ("% of roofline", "ms", "ms at roofline", "max. gain, ms")
    spreads = {key: f"{share:.0%}" for key, share in ceilings.spread.items()}
    columns = (format_count(ceilings.threads, "thread"), "ceiling", "spread of the ceiling")
    return [
        Heading("What limits it"),
        Text(
            f"Lower limit by the roofline model: {format_milliseconds(ideal)} of "
            f"{format_milliseconds(total)} ms, with every kernel at its roofline and no casts, "
            "copies, Q/DQ or transposes. Kernels that were not judged count in full."
        ),
        Bars("ms a run", tuple(bars)),
        _plot_roofline(judged, ceilings),
        Table(columns, tuple((*row, spreads.get(key, "-")) for *row, key in figures)),
        Heading("The kernels with most to gain"),
        Table(("kernel", "operator", "bound", *times), tuple(map(_make_row, ranked))),
    ]


def _plot_roofline(judged: Sequence[KernelRoofline], ceilings: Ceilings) -> Lines:
    ranked = sorted(judged, key=lambda entry: -entry.kernel.time_ns)[:_DOTS]
    marks = [
        Point(entry.flops_per_byte, entry.flops_per_second, entry.kernel.op_type, entry.bound)
        for entry in ranked
        if entry.flops_per_byte and entry.flops_per_second
    ]
    xs = [mark.x for mark in marks] or [1.0]
    used = {entry.arithmetic for entry in judged}
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
    axes = ("operations a byte", "operations a second")
    marked = (tuple(roofs), tuple(marks))
    return Lines(*axes, *marked, log_x=True, log_y=True, legend=_MEANING, named=_NAMED)


def _make_row(entry: KernelRoofline) -> tuple[str, ...]:
    kernel = entry.kernel
    return (
        ", ".join(kernel.sources[:2]) or kernel.name,
        kernel.op_type,
        entry.bound,
        "-" if entry.bound == "unknown" else f"{entry.share:.0%}",
        format_milliseconds(kernel.time_ns),
        "-" if entry.removable else format_milliseconds(entry.ideal_ns),
        format_milliseconds(entry.gain_ns),
    )


TOP = 15
_SOURCES = 3


def build_profile_parts(profile: Profile, top: int | None = TOP) -> tuple[Part, ...]:
    """Return a profile's report, `top` rows of each table; what was not measured is left out."""
    outside = max(0.0, 1 - profile.attributed)
    blocks: list[Block] = [
        Heading("Where the time goes"),
        Text(
            f"A run takes {format_milliseconds(profile.plain_ns)} ms on {profile.backend}. "
            f"{format_count(len(profile.kernels), 'kernel')} took {profile.inside:.1%} of "
            f"the profiled run ({profile.coverage:.1%} with the time between them); "
            f"{outside:.1%} of a call is outside of the kernels. The profiler's overhead of "
            f"{profile.overhead:.1%} is subtracted."
        ),
        Heading("By operator"),
        _make_share_bars(profile.by("op_type"), top),
    ]
    if len(profile.regions) > 1:
        blocks += [Heading("By region"), _make_share_bars(profile.by("region"), top)]
    if len(profile.by("kind")) > 1:
        blocks += [Heading("By kind"), _make_share_bars(profile.by("kind"), top)]
    ranked = sorted(profile.kernels, key=lambda kernel: -kernel.time_ns)[:top]
    total = max(1.0, sum(kernel.time_ns for kernel in profile.kernels))
    rows = [
        (
            join_names(entry.sources, _SOURCES) or entry.note or entry.name,
            entry.op_type,
            entry.region,
            format_milliseconds(entry.time_ns),
            f"{entry.time_ns / total:.1%}",
        )
        for entry in ranked
    ]
    notes: tuple[Block, ...] = ()
    if profile.notes:
        notes = (Heading("Notes"), *(Text(note) for note in profile.notes))
    candidates = (
        Part(
            "time",
            (
                *blocks,
                Heading("The longest kernels"),
                Table(("layers", "operator", "region", "ms", "share"), tuple(rows)),
            ),
        ),
        Part("placement", tuple(_build_placement(profile))),
        Part("roofline", tuple(build_roofline_blocks(profile))),
        Part("actions", tuple(build_action_blocks(profile.actions))),
        Part("notes", notes),
    )
    return tuple(part for part in candidates if part.blocks)


def summarize_profile(profile: Profile) -> Part:
    """Return what a profile says at a glance."""
    operators, total = profile.by("op_type"), sum(k.time_ns for k in profile.kernels)
    first, share = next(iter(operators.items()), ("nothing", None))
    pills = [Pill(f"{first} takes {share.share:.0%} of the time" if share else "no kernel ran")]
    judged = [entry for entry in verdicts(profile) if not entry.removable]
    ideal = sum(entry.ideal_ns for entry in judged)
    if ideal:
        pills.append(Pill(f"as it is, at most {total / ideal:.2g} times as fast on this machine"))
    cost = profile.overhead
    pills.append(Pill(f"profiler's cost {cost:.0%}, taken off", "warn" if cost > 1 else "good"))
    outside = max(0.0, 1 - profile.attributed)
    slowest = max(profile.kernels, key=lambda kernel: kernel.time_ns, default=None)
    tiles = [
        Tile("a run", f"{format_milliseconds(profile.plain_ns)} ms", profile.backend),
        Tile("outside of kernels", f"{outside:.1%}", "of a call"),
    ]
    if slowest is not None:
        name = ", ".join(slowest.sources[:1]) or slowest.name
        longest = f"{format_milliseconds(slowest.time_ns)} ms"
        tiles.insert(1, Tile("longest kernel", longest, slowest.op_type, name))
    if profile.actions:
        action = profile.actions[0]
        estimated = action.estimate_ns is not None
        gain_ns = action.estimate_ns if estimated else action.stake_ns
        title = "one change may gain, by estimate" if estimated else "one change gains at most"
        gain = f"{format_milliseconds(gain_ns)} ms" if gain_ns else "not known"
        tiles.append(Tile(title, gain, action.title, action.does))
    return summarize(pills, tiles)


def _make_share_bars(shares: dict[str, Share], top: int | None) -> Bars:
    ranked = list(shares.items())
    first = ranked[:top]
    remaining = [entry for _, entry in ranked[len(first) :]]
    shown = [
        Bar(name or "(none)", (entry.time_ns / 1e6,), figure)
        for name, entry in first
        for figure in [f"{format_milliseconds(entry.time_ns)} ms, {entry.share:.1%}"]
    ]
    if remaining_ns := sum(entry.time_ns for entry in remaining):
        share = sum(entry.share for entry in remaining)
        label = f"{len(remaining)} more"
        figure = f"{format_milliseconds(remaining_ns)} ms, {share:.1%}"
        shown.append(Bar(label, (remaining_ns / 1e6,), figure, "lose"))
    return Bars("ms a run", tuple(shown))


def _describe_integers(profile: Profile) -> list[Block]:
    if profile.integers is None:
        return []
    return [Text(f"{format_integer_use(profile.integers)}.")]


def _build_placement(profile: Profile) -> list[Block]:
    """Return which provider took what; the nodes that fell back with what is known of why."""
    times = profile.by("provider")
    providers = dict.fromkeys((*profile.placement, *times))
    if len(providers) < 2 and not profile.fallbacks:
        counts = profile.placement.items()
        texts = (f"placement: {name} {format_count(n, 'node')}" for name, n in counts)
        return [*_describe_integers(profile), *map(Text, texts)]
    nothing = Share(0.0, 0.0, 0)
    rows = [
        (
            name or "(not recorded)",
            str(profile.placement.get(name, "-")),
            str((share := times.get(name, nothing)).kernels),
            format_milliseconds(share.time_ns),
            f"{share.share:.1%}",
        )
        for name in providers
    ]
    columns = ("provider", "nodes taken", "kernels", "ms", "share")
    table = Table(columns, tuple(rows))
    blocks: list[Block] = [Heading("Where it ran"), *_describe_integers(profile), table]
    if profile.fallbacks:
        blocks.append(Table(("fell back", "why"), tuple(profile.fallbacks.items())))
    return blocks


def build_action_blocks(actions: Sequence[Action]) -> list[Block]:
    """Return what may be done, the largest possible gain first."""
    if not actions:
        return []
    tried = any(action.measured or action.note for action in actions)
    columns = ("bottleneck", "max. gain, ms", "estimated gain, ms", *["measured"] * tried)
    rows = [
        (
            action.title,
            format_milliseconds(action.stake_ns) if action.stake_ns else "not known",
            "-" if action.estimate_ns is None else format_milliseconds(action.estimate_ns),
            *[str(action.measured or action.note or "not tried")] * tried,
            action.does,
            action.advice,
        )
        for action in actions
    ]
    text = (
        "Max. gain: the time of the kernels concerned. Estimated gain: from the machine's "
        "ceilings, not measured."
    )
    if tried:
        text += " Measured: latency with the action divided by latency without it (99 %)."
    return [Heading("What can be done"), Text(text), Table((*columns, "do", "why"), tuple(rows))]
