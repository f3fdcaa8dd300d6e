"""Profiles that were written into a run's folder, as parts of its report."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ortune.analysis.profiling import files
from ortune.core import wording as say
from ortune.core.errors import OrtuneError
from ortune.core.profile import Profile
from ortune.core.section import Bar, Bars, Block, Heading, Text
from ortune.core.study import Study
from ortune.reporting.blocks import Part, gather_parts
from ortune.reporting.explanation.explain import explain_study
from ortune.reporting.graph.blocks import build_graph_blocks, plot_layers
from ortune.reporting.graph.sides import Sides, compare_sides
from ortune.reporting.precision.regions import build_survey_blocks
from ortune.reporting.profile import build_profile_parts
from ortune.search.experiment import surveys

_WHOLE = 12
"""Columns of a wide page."""
_ARROW = " \N{RIGHTWARDS ARROW} "
_OPERATORS, _SHORT = 12, 0.005
"""Operators that are shown at most, and the share of the longest that one must take."""
_ORDER, _GRAPH, _BY_REGION = 5, 7, 9
"""Where the comparison by operator, the graph and precision by region stand among the sections."""


def build_report_parts(study: Study, *, graphs: bool = True) -> tuple[Part, ...]:
    """Return all parts of a run's report in order; `graphs` node by node take a while."""
    profiles = tuple(_read_profiles(study))
    graph_parts: list[Part] = []
    sides: dict[str, Sides] = {}
    try:
        sides = compare_sides(study) if graphs else {}
    except OrtuneError as error:
        text = Text(f"The graph is left out: {error.what}.", "warn")
        graph_parts.append(Part("graph", (text,), _GRAPH))
    for place, (name, pair) in enumerate(sides.items(), 1):
        title = "graph" if place == 1 else f"graph-{place}"
        graph_parts.append(Part(title, tuple(build_graph_blocks(study, name, pair)), _GRAPH))
    lone = next(iter(sides.values())) if len(sides) == 1 else None
    readable = [profile for _, profile in profiles if isinstance(profile, Profile)]
    all_parts = (
        *gather_parts(study),
        *_compare_operators(study, readable, lone),
        *graph_parts,
        *_build_precision_parts(study),
        *_nest_profiles(profiles),
    )
    return fill_rows(sorted(all_parts, key=lambda part: part.order))


def fill_rows(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Widen each part that nothing stands beside."""
    rows: list[Part] = []
    for place, part in enumerate(parts):
        neighbours = (*rows[-1:], *parts[place + 1 : place + 2])
        pairs = any(part.columns + near.columns == _WHOLE for near in neighbours)
        rows.append(part if pairs else replace(part, columns=_WHOLE))
    return tuple(rows)


def _read_profiles(study: Study) -> Iterator[tuple[str, Profile | str]]:
    """Yield folder and profile of every profile in a run, or what is wrong with it."""
    root = Path(study.root)
    if not study.root or not root.is_dir():
        return
    places = (root, *sorted(path for path in root.iterdir() if path.is_dir()))
    for place in places:
        if (place / files.WHOLE).is_file():
            try:
                yield place.name, files.read_profile(place)
            except OrtuneError as error:
                yield place.name, error.what


def _build_precision_parts(study: Study) -> Iterator[Part]:
    """Yield what the run's journal says of regions, or what is wrong with it."""
    try:
        records = surveys.read_journal(Path(study.root)) if study.root else []
        region_surveys = explain_study(study, records).surveys if records else ()
    except OrtuneError as error:
        yield Part(
            "precision", (Text(f"Regions are left out: {error.what}.", "warn"),), _BY_REGION
        )
        return
    for place, region_survey in enumerate(region_surveys, 1):
        yield Part(
            f"precision-{place}", tuple(build_survey_blocks(region_survey, folds=True)), _BY_REGION
        )


def _nest_profiles(profiles: Sequence[tuple[str, Profile | str]]) -> Iterator[Part]:
    for place_in_run, (place, profile) in enumerate(profiles, 1):
        name = f"profile-{place_in_run}"
        if isinstance(profile, str):
            yield Part(name, (Text(f"A profile is left out: {profile}.", "warn"),))
            continue
        title = Heading(f"Profile of {Path(profile.model).name} on {profile.backend}")
        source = Text(f"From {place}/{files.WHOLE}, measured apart from the search.")
        inner = (
            replace(block, folded=True) if isinstance(block, Heading) else block
            for part in build_profile_parts(profile)
            for block in part.blocks
        )
        yield Part(name, (title, source, *inner))


def _compare_operators(
    study: Study, profiles: Sequence[Profile], graphs: Sides | None
) -> Iterator[Part]:
    """Yield where the time goes by operator: in the original, in the winner, or in both."""
    profiles_by_side = _find_before_and_after(study, profiles)
    sides = tuple(profiles_by_side)
    if profiles_by_side:
        times = [
            {name: share.time_ns / 1e6 for name, share in profile.by("op_type").items()}
            for profile in profiles_by_side.values()
        ]
        source = "Kernel times of profiled runs, measured apart from the search."
    elif shares := _list_shares(study, graphs):
        sides = ("original", "winner")[: len(shares)]
        latencies = [say.latency_ns(study, trial) for trial in (study.baseline, study.best)]
        times = [
            {name: share * (latency or 0) / 1e6 for name, share in timing.items()}
            for timing, latency in zip(shares, latencies, strict=False)
        ]
        source = (
            "Estimate: latency times each operator's share of kernel time in a few profiled runs."
        )
        source += "" if len(shares) > 1 else " The winner was not profiled."
    else:
        return
    times = [_join_quantized(timing) for timing in times]
    names = sorted(
        {name for timing in times for name in timing}, key=lambda n: -_find_longest(times, n)
    )
    shown = [
        n for n in names if _find_longest(times, n) >= _SHORT * _find_longest(times, names[0])
    ]
    bars = tuple(
        Bar(name or "(none)", lengths, _ARROW.join(f"{ms:.3g}" for ms in lengths))
        for name in shown[:_OPERATORS]
        for lengths in [tuple(timing.get(name, 0.0) for timing in times)]
    )
    more = len(names) - len(bars)
    title = "Where the time goes" + ", before and after" * (len(sides) > 1)
    source += f" {say.format_count(more, 'more operator')} took less." if more else ""
    blocks: list[Block] = [Heading(title), Text(source)]
    blocks.append(Bars("ms a run", bars, sides, stacked=False))
    if study.best.integers:
        blocks.append(Text(f"Of the winner {say.format_integer_use(study.best.integers)}."))
    if graphs and (layers := plot_layers(graphs)):
        blocks += [Heading("Layers that changed most"), layers]
    yield Part("operators", tuple(blocks), _ORDER, columns=7)


def _list_shares(study: Study, graphs: Sides | None) -> list[Mapping[str, float]]:
    """Return each operator's share of the original's time, then of the winner's where known.

    Those of both on one occasion, beside each other, where they were kept.
    """
    if graphs and graphs.shares:
        return list(graphs.shares)
    shares = [study.header.by_operator, study.best.by_operator]
    return [share for share in shares if share] if shares[0] else []


def _join_quantized(timing: Mapping[str, float]) -> dict[str, float]:
    """Add what an operator takes in integers to what it takes in floats."""
    joined: defaultdict[str, float] = defaultdict(float)
    for name, time_ms in timing.items():
        joined[name.removeprefix("QLinear")] += time_ms
    return joined


def _find_longest(times: Sequence[Mapping[str, float]], name: str) -> float:
    return max(timing.get(name, 0.0) for timing in times)


def _find_before_and_after(study: Study, profiles: Sequence[Profile]) -> dict[str, Profile]:
    """Return the profiles of original and winner, those of their own backends first."""
    best, originals = study.best, {Path(path).resolve() for path in study.models.values()}
    sides = {"original": (study.baseline, originals)}
    if best.artefact:
        built = (Path(study.root) / best.artefact).rglob("*.onnx")
        sides["winner"] = (best, {path.resolve() for path in built})
    elif best.key != study.baseline.key:
        sides["winner"] = (best, originals)
    selected: dict[str, Profile] = {}
    for side, (trial, models) in sides.items():
        # The path of a profile's model is as it was given: from here, or from beside the run.
        folders = (Path(), Path(study.root).resolve().parent)
        fit = [p for p in profiles if models & {(f / p.model).resolve() for f in folders}]
        same_backend = [profile for profile in fit if profile.backend == str(trial.plan.backend)]
        # Of one file on two backends only the backend tells which is whose.
        if chosen := same_backend or (fit if best.artefact or len(sides) == 1 else []):
            selected[side] = chosen[0]
    return selected
