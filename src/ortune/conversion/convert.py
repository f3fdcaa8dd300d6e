"""Convert a model to a precision and an optimization level, as told."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.analysis.benchmark import bench
from ortune.analysis.benchmark.requests import Bench
from ortune.conversion import check, folds, formats, options, samples, steps
from ortune.conversion.requests import Convert
from ortune.core.event import Note, noting
from ortune.core.outputs import free
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.core.step import Edit, Recipe
from ortune.core.trial import Interval
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.recipe.build import build
from ortune.recipe.built import Built

_BENCH_SECONDS = 3.0


@dataclass(frozen=True, repr=False)
class Converted(Result):
    """A converted model.

    Attributes:
        model: The source.
        output: The new file.
        precision: As asked.
        target: As asked.
        opt_level: As asked.
        edits: What each step did.
        weights: Type -> bytes of weights in the new file.
        compared: Scores against the source: metric, value, samples.
        latency_ratio: Of the new file's latency to the source's; timed for ``dynamic_conv`` alone.
        notes: What a person should know.
    """

    model: Path
    output: Path
    precision: str | None
    target: str
    opt_level: str
    edits: tuple[Edit, ...]
    bytes_before: int
    bytes_after: int
    weights: Mapping[str, int]
    compared: Sequence[Mapping[str, object]]
    latency_ratio: Interval | None
    notes: tuple[str, ...]

    def summary(self) -> Mapping[str, object]:
        """Return the file, its size, weights and scores."""
        return {
            "output": self.output,
            "bytes": f"{self.bytes_before} before, {self.bytes_after} after",
            "weights": ", ".join(f"{name} {size} bytes" for name, size in self.weights.items()),
            **{str(score["metric"]): score["value"] for score in self.compared},
        }


def run(asked: Convert) -> Converted:
    """Convert, load and compare in a temporary folder, and write the result only then."""
    options.check(asked)
    folding = folds.folds(asked)
    model = Path(asked.model)
    out = free(asked.out, asked.force, model)
    notes: list[str] = []
    asked = replace(asked, sink=noting(notes, asked.sink))
    for note in options.advice(asked):
        asked.sink(note)
    with tempfile.TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        data = samples.read(asked, model, folder)
        made = steps.make(asked, data, folder)
        weights, scores = check.check(asked, made.path, data.feeds, folder)
        if folding:
            over = folder / "folded" / model.name
            recipe = Recipe("fold", tuple(folding))
            built = build(made.path, recipe, over, feeds=data.feeds, sink=asked.sink)
            made = Built(built.path, (*made.edits, *built.edits))
        file.save(file.load(made.path), out)
    formats.warn(out, model, asked.sink)
    if asked.folds and facts(file.load(model)).has("Conv"):
        asked.sink(
            Note(
                "convolutions keep int8 weights in the file and run at float32's speed: "
                "Cast and Mul widen them once, at load (DequantizeLinear would in every run)"
            )
        )
    return Converted(
        model,
        out,
        asked.precision,
        asked.target,
        asked.level,
        made.edits,
        file.size(model),
        file.size(out),
        weights,
        scores,
        _timed(asked) if asked.dynamic_conv and not folding else None,
        tuple(notes),
    )


convert = verb(Convert, run)


def _timed(asked: Convert) -> Interval | None:
    """Return the latency of the result over the source's, with its interval."""
    timed = Bench(
        [asked.model, asked.out],
        data=asked.data,
        shapes=asked.shapes,
        ranges=asked.ranges,
        custom_ops=asked.custom_ops,
        seconds=_BENCH_SECONDS,
    )
    return bench.run(timed).ratios[1]
