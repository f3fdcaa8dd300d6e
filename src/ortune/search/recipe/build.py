"""Apply a recipe to a model file: load, edit step by step, check each, save.

Every step is a transaction. Structure, names and types are checked after each. Numbers are
compared once for a run of exact steps; only when that fails are the steps replayed one by one, and
the guilty one rolled back. A quantizer that cannot do its work fails the build: the plan without
it is another plan. So does a transform that says `Refused`, and one that changes inputs or outputs
on request (`keeps_io` False): numbers are compared across it by its bridge, and what follows is
compared with the model behind it, on samples that were taken over.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from ortune.core.event import Sink, ignore_event
from ortune.core.plugins import codec
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data.feeds import Feeds
from ortune.graph.io import file
from ortune.quantizers.calibration.ranges_file import SavedRanges
from ortune.search.recipe.built import (
    SOURCE,
    STEPS,
    BuiltModel,
    find_build,
    link_or_copy,
    list_file_names,
    record_build,
    steps_key,
)
from ortune.search.recipe.built import Material as Material
from ortune.search.recipe.editing import EditSession, list_following

_SAMPLES = ".samples"  # ending of the samples beside a build that takes others than its source


def build(
    source: str | Path,
    recipe: Recipe,
    out: str | Path,
    *,
    feeds: Feeds | None = None,
    ranges: SavedRanges | None = None,
    custom_ops: tuple[str, ...] = (),
    sink: Sink = ignore_event,
) -> BuiltModel:
    """Write the model that `recipe` makes of `source` to `out`.

    Args:
        feeds: Samples to calibrate on, and to compare numbers on; made-up ones only compare.
        ranges: Ranges of an earlier calibration of `source`; see
            `ortune.quantizers.calibration.ranges_file.load_ranges`.
        custom_ops: Libraries of operators that the model needs, or will.

    Raises:
        OrtuneError: A quantizer found nothing to do, or the model cannot be used.
    """
    indices = tuple(range(feeds.count)) if feeds and not feeds.synthetic else ()
    with open_temporary_folder() as folder:
        material = Material(feeds, indices, ranges, custom_ops)
        built = build_in(Path(folder), Path(source), recipe, material, sink=sink)
        return BuiltModel(file.save(file.load(built.path), out), built.edits)


def build_in(
    cache: Path, source: Path, recipe: Recipe, material: Material, *, sink: Sink = ignore_event
) -> BuiltModel:
    """Like `build`, into ``CACHE/<steps key>/NAME.onnx``; steps built before are not repeated."""
    name = source.stem
    if not recipe.steps:
        return BuiltModel(source, ())
    shared = None if any(map(is_crossing, recipe.steps)) else material.shared
    if shared is None:
        return _build_here(cache, source, recipe, material, sink)
    place = cache / steps_key(recipe.steps, material.compute_key(recipe.steps))
    key = (file.compute_digest(source), place.name)
    names = list_file_names(name)
    if find_build(cache, name, recipe.steps, material.compute_key(recipe.steps)) is None:
        shared.fetch_files("builds", key, place, names)
    built = _build_here(cache, source, recipe, material, sink)
    if built.path.parent == place:
        shared.store_files("builds", key, place, names)
    return built


def _build_here(
    cache: Path, source: Path, recipe: Recipe, material: Material, sink: Sink
) -> BuiltModel:
    name = source.stem
    for count in range(len(recipe.steps), 0, -1):
        steps = recipe.steps[:count]
        start = find_build(cache, name, steps, material.compute_key(steps))
        if start is not None:
            break
    else:
        count, start = 0, BuiltModel(source, ())
    whole, material = material, _carry_samples(start, name, recipe.steps[:count], material)
    edges = [i for i, step in enumerate(recipe.steps) if isinstance(step, Quantizer) and i > count]
    for until in [*edges, len(recipe.steps)] if len(recipe.steps) > count else []:
        steps = recipe.steps[:until]
        folder = cache / steps_key(steps, whole.compute_key(steps))
        folder.mkdir(parents=True, exist_ok=True)
        first = not any(isinstance(step, Quantizer) for step in steps[:count])
        followers = list_following(material.planned, steps[:count])
        work = EditSession(start.path, folder, material, sink, trusted=first, followers=followers)
        edits = list(start.edits)
        for exact, group in itertools.groupby(steps[count:], lambda s: isinstance(s, Transform)):
            if exact:
                edits += work.apply_exact(cast(list[Transform], list(group)))
            else:
                edits += itertools.chain(*(work.apply_lossy(cast(Quantizer, s)) for s in group))
        if not count:
            work.model.metadata_props[SOURCE] = file.compute_digest(source)
        work.model.metadata_props[STEPS] = json.dumps(codec.encode(tuple(steps)))
        path = file.save(work.model, folder / f"{name}.onnx", durable=False)
        if any(map(is_crossing, steps)) and work.material.feeds is not None:
            link_or_copy(work.material.feeds.stream, folder / f"{name}{_SAMPLES}")
        work.remove_files()
        start = BuiltModel(path, tuple(edits), file.compute_content_digest(path))
        record_build(start, name)
        material = _carry_samples(start, name, recipe.steps[:until], material)
        count = until
    return start


def _carry_samples(
    start: BuiltModel, name: str, steps: Sequence[Step], material: Material
) -> Material:
    """Return the samples as the model that was built takes them."""
    if material.feeds is None or not any(map(is_crossing, steps)):
        return material
    path = start.path.with_name(f"{name}{_SAMPLES}")
    if not path.is_file():
        return replace(material, feeds=None, calibration=())
    return replace(material, feeds=replace(material.feeds, stream=path))


def is_crossing(step: Step) -> bool:
    """Whether a step changes the model's inputs or outputs: what follows takes other samples."""
    return isinstance(step, Transform) and not step.keeps_io
