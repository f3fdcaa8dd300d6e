"""Suggestions for a profiled model's bottlenecks, and what each brings when it is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.analysis.benchmark.bench import race
from ortune.analysis.profiling.advice import actions
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Progress, Sink, silent
from ortune.core.plugins.spelling import parse
from ortune.core.profile import Action, Profile
from ortune.core.reading import step
from ortune.core.step import Recipe
from ortune.data import given
from ortune.data.feeds import Feeds
from ortune.model.analysis import facts as model_facts
from ortune.model.graph import edit
from ortune.model.io import file, names
from ortune.recipe.build import build

_SAMPLES = 16
"""Made-up samples that a quantizer calibrates on: enough for speed, never for accuracy."""


def suggest(profile: Profile) -> tuple[Action, ...]:
    """Return the actions for a profile, from the model file that it was taken of.

    Raises:
        OrtuneError: The file is gone or cannot be read.
    """
    model = file.load(Path(profile.model))
    edit.inline(model)
    names.unique(model)
    known = model_facts.facts(model, read=True)
    return actions(profile, model, known, parse(Backend, profile.backend))


def evaluate_suggestions(
    profile: Profile,
    every: Sequence[Action],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seconds: float = 20,
    sink: Sink = silent,
) -> tuple[Action, ...]:
    """Do each action that names steps or a setting, time all against the model as it is.

    Args:
        profile: Of the model; its batch is timed.
        every: The actions; those that name nothing to do come back as they are.
        data: Samples; made up when None, which is enough for time and not for accuracy.
        shapes: Shapes of made-up inputs.
        ranges: Values of made-up inputs.
        seconds: Time for timing, all together; building comes on top.
        sink: Receives notes.

    Raises:
        OrtuneError: The model or the data cannot be used.
    """
    source, origin = Path(profile.model), parse(Backend, profile.backend)
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        takes, out = model_facts.facts(file.load(source)).inputs, folder / "data"
        found = given.samples(data, takes, out, shapes=shapes, ranges=ranges, count=_SAMPLES)
        done, built = list(every), {}
        for place, action in enumerate(every):
            if not (action.steps or action.backend):
                continue
            sink(Progress(f"building: {action.does}", place, len(every)))
            try:
                out = folder / f"{place}.onnx"
                built[place] = _built(source, action, found, out, origin)
            except OrtuneError as error:
                done[place] = replace(action, note=f"not built: {error.what}")
        if not built:
            return tuple(done)
        answer = race(
            [(source, origin), *built.values()],
            data=data,
            shapes=shapes,
            ranges=ranges,
            batch=profile.batch,
            seconds=seconds,
            sink=sink,
        )
    for place, ratio, row in zip(built, answer.ratios[1:], answer.rows[1:], strict=True):
        if ratio:
            done[place] = replace(every[place], measured=ratio)
        else:
            done[place] = replace(every[place], note=f"does not run: {row['error']}")
    return tuple(done)


def _built(
    source: Path, action: Action, found: Feeds, out: Path, origin: Backend
) -> tuple[Path, Backend]:
    """Return the model with the action's steps, and the backend with its setting."""
    backend = parse(Backend, action.backend) if action.backend else origin
    if not action.steps:
        return source, backend
    recipe = Recipe("try", tuple(map(step, action.steps)))
    feeds = replace(found, synthetic=False)
    made = build(source, recipe, out, feeds=feeds, custom_ops=origin.custom_ops)
    if not made.changed:
        raise OrtuneError(f"{action.does} changes nothing", fix="leave it out")
    return made.path, backend
