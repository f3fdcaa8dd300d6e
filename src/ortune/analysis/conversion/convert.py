"""Convert a model to a precision and an optimization level, as told."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ortune.analysis.benchmark import bench
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.conversion import steps
from ortune.analysis.conversion.requests import Convert
from ortune.analysis.verification.verify import verify
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.event import Note, noting
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import instruction_sets, native
from ortune.core.outputs import free
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.core.step import Edit, Recipe
from ortune.core.trial import Interval
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import facts
from ortune.graph.io import file
from ortune.graph.lint import gpu
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once, capabilities
from ortune.search.recipe.build import build
from ortune.search.recipe.built import Built


def check_options(asked: Convert) -> None:
    """Refuse what cannot be had, before anything is read.

    Raises:
        BadSettings: An option does not go with the others.
    """
    lossy, ranged = steps.CALIBRATED, steps.RANGED
    for given, name, wanted in (
        (asked.ranges_from is not None, "--ranges-from", ranged),
        (asked.augment is not None, "--augment", lossy),
        (asked.exclude_from is not None, "--exclude-from", lossy),
        (asked.threshold is not None, "--threshold", lossy),
    ):
        if given and asked.precision not in wanted:
            raise BadSettings(f"{name} is about {', '.join(wanted)}", fix="add --precision int8")
    steps.refuse_precision(asked.precision, asked.target, static=asked.static)
    steps.refuse_format(asked.format, asked.precision, static=asked.static)
    if asked.format == "qoperator" and asked.target != "cpu":
        raise BadSettings(
            "--format qoperator is for CPUs: no GPU provider has kernels of integer operators",
            fix="leave --format out: pairs of Q/DQ are written",
        )
    if asked.precision != "int8":
        for given, name in (
            (not asked.per_channel, "--no-per-channel"),
            (asked.reduce_range, "--reduce-range"),
            (asked.dynamic_conv, "--dynamic-conv"),
        ):
            if given:
                raise BadSettings(f"{name} is about int8", fix="add --precision int8")
    elif asked.dynamic_conv and asked.static:
        raise BadSettings(
            "--dynamic-conv is for int8 without data", fix="leave --dynamic-conv or --data out"
        )


def advice(asked: Convert) -> Sequence[Note]:
    """Return what a person should know about the file that they asked for."""
    found = []
    if asked.level == "all" and not asked.portable:
        found.append(
            Note(
                "--opt-level all binds the file to this hardware: it may be slow or fail "
                "elsewhere; --opt-level extended makes one that runs on any CPU",
                warning=True,
            )
        )
    if asked.level == "all" and asked.portable:
        found.append(
            Note(
                "--opt-level all holds the portable rewrites of extended here; the runtime "
                "adds what is bound to the hardware when it loads the file"
            )
        )
    vnni = "int8-vnni" in native(instruction_sets())
    if asked.precision == "int8" and asked.target == "cpu" and not (vnni or asked.reduce_range):
        found.append(
            Note(
                "this CPU has no VNNI: sums of 8-bit products may saturate; "
                "--reduce-range avoids it",
                warning=True,
            )
        )
    return found


SAMPLES = 64
"""Compared after a conversion; `ortune verify` takes all."""


def check_result(
    asked: Convert, path: Path, feeds: Feeds | None, folder: Path
) -> tuple[Mapping[str, int], list[dict[str, object]]]:
    """Check types, loading and answers of a converted file; return its weights and scores.

    Raises:
        OrtuneError: It is not what was ordered, or is for the CPU and does not run there.
    """
    found = facts(file.load(path))
    check_types(asked, found)
    check_target(asked, path)
    backend = steps.checker(asked.precision, asked.custom_ops)
    where = "the CPU" if backend.name() == "cpu" else backend.name()
    scores: list[dict[str, object]] = []
    try:
        if lacking := capabilities(backend).missing:
            raise BackendMissing(lacking, fix=f"install {backend.name()}")
        _loads(path, folder, backend)
        scores = _compared(Path(asked.model), path, feeds, backend)
    except OrtuneError as error:
        if asked.target == "cpu" and backend.name() == "cpu":
            raise
        asked.sink(Note(f"not checked on {where}: {error.what}", warning=True))
    if any(score["value"] != score["value"] for score in scores):
        asked.sink(
            Note("the result answers with NaN: the values overflow this precision", warning=True)
        )
    return found.precisions, scores


def check_types(asked: Convert, found: Facts) -> None:
    """Check that the file holds the precision that was ordered.

    Raises:
        BadModel: It does not.
    """
    folded = asked.folds and found.has("Cast") and found.has("Mul")
    wanted = asked.precision
    if wanted is not None and not steps.holds(wanted, found, folded=folded):
        sizes = found.precisions.items()
        weights = ", ".join(f"{size} bytes of {name}" for name, size in sizes)
        raise BadModel(
            f"the result is not {asked.precision}: it holds {weights or 'no weights'}",
            fix="see `ortune inspect`; another --precision may suit this model",
        )


def check_target(asked: Convert, path: Path) -> None:
    """Check that TensorRT would take the pairs of the file, where it is meant for it.

    Raises:
        BadModel: It would refuse one.
    """
    if asked.precision != "int8" or asked.target == "cpu" or asked.integers != "tensorrt":
        return
    for odd in gpu.tensorrt(file.load(path)):
        raise BadModel(
            f"TensorRT refuses the result: {odd.what} ({', '.join(odd.places)})", fix=odd.action
        )


def _loads(path: Path, folder: Path, backend: Backend) -> None:
    try:
        ask_once(WorkerJob({MAIN: path.resolve()}, backend, {}, (folder / "load").resolve()))
    except WorkerFailed as error:
        where = "the CPU" if backend.name() == "cpu" else backend.name()
        raise BadModel(
            f"the result does not load on {where}: {error.failure.reason}",
            fix="try another --precision or --opt-level; nothing was written",
        ) from None


def _compared(
    model: Path, path: Path, feeds: Feeds | None, backend: Backend
) -> list[dict[str, object]]:
    """Score the result against the source on a few samples; empty when nothing can be run."""
    if feeds is None:
        return []
    stream = Stream(feeds.stream)
    found = verify(model, path, data=lambda: islice(stream, SAMPLES), on=str(backend))
    return [
        {"metric": score.metric, "value": score.value, "samples": score.samples}
        for score in found.scores
    ]


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
    check_options(asked)
    folding = steps.folds(asked)
    model = Path(asked.model)
    out = free(asked.out, asked.force, model)
    notes: list[str] = []
    asked = replace(asked, sink=noting(notes, asked.sink))
    for note in advice(asked):
        asked.sink(note)
    with tempfile.TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        data = steps.read_samples(asked, model, folder)
        made = steps.make(asked, data, folder)
        weights, scores = check_result(asked, made.path, data.feeds, folder)
        if folding:
            over = folder / "folded" / model.name
            recipe = Recipe("fold", tuple(folding))
            built = build(made.path, recipe, over, feeds=data.feeds, sink=asked.sink)
            made = Built(built.path, (*made.edits, *built.edits))
        file.save(file.load(made.path), out)
    steps.warn_of_saturation(out, model, asked.sink)
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
