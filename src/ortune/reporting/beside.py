"""Profiles that were written into a run's folder, as parts of its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ortune.analysis.profiling import files
from ortune.core.errors import OrtuneError
from ortune.core.profile import Profile
from ortune.core.section import Bar, Bars, Block, Heading, Text
from ortune.core.study import Study
from ortune.core.wording import count
from ortune.reporting.blocks import Part, gather
from ortune.reporting.explanation.explain import explained
from ortune.reporting.precision.regions import survey
from ortune.reporting.profile import parts
from ortune.search.experiment import surveys

_OPERATORS = 12
_ORDER, _BY_REGION = 22, 24
"""Where the comparison by operator and precision by region stand among the sections."""


def whole(study: Study) -> tuple[Part, ...]:
    """Return all parts of a run's report in order, those of its profiles included."""
    found = tuple(_read(study))
    compared = _compared(study, [one for _, one in found if isinstance(one, Profile)])
    made = (*gather(study), *compared, *_precision(study), *_told(found))
    return tuple(sorted(made, key=lambda part: part.order))


def _read(study: Study) -> Iterator[tuple[str, Profile | str]]:
    """Yield folder and profile of every profile in a run, or what is wrong with it."""
    root = Path(study.root)
    if not study.root or not root.is_dir():
        return
    places = (root, *sorted(path for path in root.iterdir() if path.is_dir()))
    for place in places:
        if (place / files.WHOLE).is_file():
            try:
                yield place.name, files.read(place)
            except OrtuneError as error:
                yield place.name, error.what


def _precision(study: Study) -> Iterator[Part]:
    """Yield what the run's journal says of regions, or what is wrong with it."""
    try:
        records = surveys.read(Path(study.root)) if study.root else []
        known = explained(study, records).surveys if records else ()
    except OrtuneError as error:
        yield Part(
            "precision", (Text(f"Regions are left out: {error.what}.", "warn"),), _BY_REGION
        )
        return
    for place, one in enumerate(known, 1):
        yield Part(f"precision-{place}", tuple(survey(one, folds=True)), _BY_REGION)


def _told(found: Sequence[tuple[str, Profile | str]]) -> Iterator[Part]:
    for place_in_run, (place, profile) in enumerate(found, 1):
        name = f"profile-{place_in_run}"
        if isinstance(profile, str):
            yield Part(name, (Text(f"A profile is left out: {profile}.", "warn"),))
            continue
        title = Heading(f"Profile of {Path(profile.model).name} on {profile.backend}")
        source = Text(f"From {place}/{files.WHOLE}, measured apart from the search.")
        inner = (_folded(block) for part in parts(profile) for block in part.blocks)
        yield Part(name, (title, source, *inner))


def _folded(block: Block) -> Block:
    return replace(block, folded=True) if isinstance(block, Heading) else block


def _compared(study: Study, profiles: Sequence[Profile]) -> Iterator[Part]:
    """Yield where the time goes by operator: in the original, in the winner, or in both."""
    known = _before_and_after(study, profiles)
    sides = tuple(known)
    if known:
        times = [_milliseconds(profile) for profile in known.values()]
        told, unit = "Kernel times of profiled runs, measured apart from the search.", "ms a run"
    elif study.header.by_operator:
        sides = ("original",)
        times = [{name: 100 * share for name, share in study.header.by_operator.items()}]
        told, unit = "As the search's set-up found it; the winner was not profiled.", "% of a run"
    else:
        return
    names = sorted({name for one in times for name in one}, key=lambda n: -_most(times, n))
    bars = tuple(_bar(name, [one.get(name, 0.0) for one in times]) for name in names[:_OPERATORS])
    more = len(names) - len(bars)
    yield Part(
        "operators",
        (
            Heading(f"By operator: {' and '.join(sides)}"),
            Text(told + (f" {count(more, 'more operator')} took less." if more else "")),
            Bars(unit, bars, sides, stacked=False),
        ),
        _ORDER,
    )


def _milliseconds(profile: Profile) -> dict[str, float]:
    return {name: one.time_ns / 1e6 for name, one in profile.by("op_type").items()}


def _most(times: Sequence[Mapping[str, float]], name: str) -> float:
    return max(one.get(name, 0.0) for one in times)


def _bar(name: str, lengths: Sequence[float]) -> Bar:
    note = " \N{RIGHTWARDS ARROW} ".join(f"{length:.3g}" for length in lengths)
    return Bar(name or "(none)", tuple(lengths), note)


def _before_and_after(study: Study, profiles: Sequence[Profile]) -> dict[str, Profile]:
    """Return the profiles of original and winner, those of their own backends first."""
    best, originals = study.best, {Path(path).resolve() for path in study.models.values()}
    sides = {"original": (study.baseline, originals)}
    if best.artefact:
        built = (Path(study.root) / best.artefact).rglob("*.onnx")
        sides["winner"] = (best, {path.resolve() for path in built})
    elif best.key != study.baseline.key:
        sides["winner"] = (best, originals)
    found: dict[str, Profile] = {}
    for side, (trial, models) in sides.items():
        fit = [one for one in profiles if models & _places(study, one)]
        own = [one for one in fit if one.backend == str(trial.plan.backend)]
        # Of one file on two backends only the backend tells which is whose.
        if chosen := own or (fit if best.artefact or len(sides) == 1 else []):
            found[side] = chosen[0]
    return found


def _places(study: Study, profile: Profile) -> set[Path]:
    """Return where a profile's model may lie, whose path is as it was given: here, or beside."""
    folders = (Path(), Path(study.root).resolve().parent)
    return {(folder / profile.model).resolve() for folder in folders}
