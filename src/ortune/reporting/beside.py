"""Profiles that were written into a run's folder, as parts of its report."""

from __future__ import annotations

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
from ortune.reporting.precision.regions import build_survey_blocks
from ortune.reporting.profile import build_profile_parts
from ortune.search.experiment import surveys

_OPERATORS = 12
_ORDER, _BY_REGION = 5, 9
"""Where the comparison by operator and precision by region stand among the sections."""


def build_report_parts(study: Study) -> tuple[Part, ...]:
    """Return all parts of a run's report in order, those of its profiles included."""
    profiles = tuple(_read_profiles(study))
    compared = _compare_operators(
        study, [profile for _, profile in profiles if isinstance(profile, Profile)]
    )
    all_parts = (
        *gather_parts(study),
        *compared,
        *_build_precision_parts(study),
        *_nest_profiles(profiles),
    )
    return tuple(sorted(all_parts, key=lambda part: part.order))


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
            _fold_heading(block) for part in build_profile_parts(profile) for block in part.blocks
        )
        yield Part(name, (title, source, *inner))


def _fold_heading(block: Block) -> Block:
    return replace(block, folded=True) if isinstance(block, Heading) else block


def _compare_operators(study: Study, profiles: Sequence[Profile]) -> Iterator[Part]:
    """Yield where the time goes by operator: in the original, in the winner, or in both."""
    profiles_by_side = _find_before_and_after(study, profiles)
    sides = tuple(profiles_by_side)
    if profiles_by_side:
        times = [_sum_by_operator(profile) for profile in profiles_by_side.values()]
        source, unit = "Kernel times of profiled runs, measured apart from the search.", "ms a run"
    elif study.header.by_operator:
        shares = [study.header.by_operator]
        if study.best.by_operator:
            shares.append(study.best.by_operator)
        sides = ("original", "winner")[: len(shares)]
        latencies = [say.latency_ns(study, trial) for trial in (study.baseline, study.best)]
        times = [
            {name: share * (latency or 0) / 1e6 for name, share in timing.items()}
            for timing, latency in zip(shares, latencies, strict=False)
        ]
        source = "Shares of the time in kernels, of a few profiled runs, times the latency."
        source += "" if len(shares) > 1 else " The winner was not profiled."
        unit = "ms a run"
    else:
        return
    names = sorted(
        {name for timing in times for name in timing}, key=lambda n: -_find_longest(times, n)
    )
    bars = tuple(
        _make_bar(name, [timing.get(name, 0.0) for timing in times]) for name in names[:_OPERATORS]
    )
    more = len(names) - len(bars)
    yield Part(
        "operators",
        (
            Heading("Where the time goes" + ", before and after" * (len(sides) > 1)),
            Text(
                source + (f" {say.format_count(more, 'more operator')} took less." if more else "")
            ),
            Bars(unit, bars, sides, stacked=False),
            *(
                [Text(f"Of the winner {say.format_integer_use(study.best.integers)}.")]
                if study.best.integers
                else []
            ),
        ),
        _ORDER,
        columns=7,
    )


def _sum_by_operator(profile: Profile) -> dict[str, float]:
    return {name: share.time_ns / 1e6 for name, share in profile.by("op_type").items()}


def _find_longest(times: Sequence[Mapping[str, float]], name: str) -> float:
    return max(timing.get(name, 0.0) for timing in times)


def _make_bar(name: str, lengths: Sequence[float]) -> Bar:
    note = " \N{RIGHTWARDS ARROW} ".join(f"{length:.3g}" for length in lengths)
    return Bar(name or "(none)", tuple(lengths), note)


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
        fit = [profile for profile in profiles if models & _list_model_paths(study, profile)]
        same_backend = [profile for profile in fit if profile.backend == str(trial.plan.backend)]
        # Of one file on two backends only the backend tells which is whose.
        if chosen := same_backend or (fit if best.artefact or len(sides) == 1 else []):
            selected[side] = chosen[0]
    return selected


def _list_model_paths(study: Study, profile: Profile) -> set[Path]:
    """Return where a profile's model may lie, whose path is as it was given: here, or beside."""
    folders = (Path(), Path(study.root).resolve().parent)
    return {(folder / profile.model).resolve() for folder in folders}
