"""Convert a model to a precision and an optimization level, as told, and check the result."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortune.cli import _excluding, _folding, _formats, _precisions, shared
from ortune.cli.run import level_of

if TYPE_CHECKING:
    from ortune.core.event import Event, Sink

_BENCH_SECONDS = 3.0


@shared.verb(shared.Verb)
@shared.model
@click.argument("out", type=shared.FILE)
@click.option(
    "--precision",
    type=click.Choice(_precisions.PRECISIONS),
    help="Of weights and arithmetic; what the model has if not given.",
)
@click.option(
    "--target",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="What the file will run on.",
)
@click.option(
    "--opt-level",
    type=click.Choice(["disable", "disabled", "basic", "extended", "all"]),
    default="extended",
    show_default=True,
    help="How far the graph is rewritten; all binds the file to this hardware.",
)
@click.option("--no-per-channel", is_flag=True, help="int8: one weight step a tensor.")
@click.option("--reduce-range", is_flag=True, help="int8: 7-bit weights, for CPUs without VNNI.")
@_formats.option
@click.option("--dynamic-conv", is_flag=True, help="int8 without data: ConvInteger, slow on CPUs.")
@_excluding.options
@shared.data
@shared.ranges_from
@shared.augment
@shared.shapes
@shared.ranges
@shared.custom_ops
@_folding.options
@shared.force
def command(
    model: Path,
    out: Path,
    precision: str | None,
    target: str,
    opt_level: str,
    no_per_channel: bool,
    reduce_range: bool,
    form: str | None,
    dynamic_conv: bool,
    exclude_from: Path | None,
    threshold: float | None,
    data: str | None,
    ranges_from: Path | None,
    augment: str | None,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    custom_ops: tuple[str, ...],
    fold_preprocess: Path | None,
    picture_size: str | None,
    fold_postprocess: tuple[str, ...],
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Convert MODEL to OUT just as told; `ortune optimize` finds out what is worth it.

    int8 with --data or --ranges-from is static (QDQ). Without them matrix products and LSTMs are
    dynamic, and convolutions keep int8 weights in the file and compute in float32. fp16 and bf16
    learn from --data which nodes must stay float32; int4 rounds weights better with it; fp8 needs
    it. The result is loaded, compared with MODEL and only then written.

    \b
    Example:
      ortune convert model.onnx out.onnx --precision int8 --data samples/
      ortune convert model.onnx out.onnx --precision fp16 --target gpu --opt-level basic
    """
    from ortune.cli import _converted, _converting
    from ortune.cli.apply import augmented, known_ranges, samples
    from ortune.cli.terminal import progress
    from ortune.core.event import Note
    from ortune.model.analysis.facts import facts
    from ortune.model.io import file

    order = _converting.Order(
        precision,
        target,
        level_of(opt_level),
        per_channel=not no_per_channel,
        reduce_range=reduce_range,
        dynamic_conv=dynamic_conv,
        static=data is not None or ranges_from is not None,
        known=ranges_from is not None,
        augmented=augment is not None,
        exclude_from=exclude_from,
        threshold=threshold,
        form=form,
        custom_ops=custom_ops,
    )
    order.check()
    steps = _folding.folds(fold_preprocess, picture_size, fold_postprocess)
    shared.free(out, force, model)
    notes: list[str] = []
    lines = _keeping(notes, progress.lines(verbose))
    with (
        tempfile.TemporaryDirectory(prefix="ortune-") as name,
        progress.held(lines, verbose=verbose) as sink,
    ):
        for note in order.advice():
            sink(note)
        known = known_ranges(ranges_from, model, sink)
        folder = Path(name)
        before = facts(file.load(model))
        feeds = samples(model, data, shapes, ranges, folder, sink, custom_ops)
        material = _converting.Given(augmented(feeds, augment, folder, sink), known)
        made = _converting.make(model, order, material, folder, sink)
        weights, scores = _converted.check(model, made.path, order, feeds, folder, sink)
        if steps:
            over = folder / "folded" / model.name
            built = _folding.folded(made.path, steps, over, feeds, sink)
            made = _converting.Converted(built.path, (*made.edits, *built.edits))
        file.save(file.load(made.path), out)
    _formats.warn(out, model, lines)
    if order.folds and before.has("Conv"):
        lines(
            Note(
                "convolutions keep int8 weights in the file and run at float32's speed: "
                "Cast and Mul widen them once, at load (DequantizeLinear would in every run)"
            )
        )
    result = {
        "model": model,
        "output": out,
        "precision": precision,
        "target": target,
        "opt_level": order.level,
        "edits": made.edits,
        "bytes_before": file.size(model),
        "bytes_after": file.size(out),
        "weights": weights,
        "compared": scores,
        "latency_ratio": _timed(model, out, data, shapes, ranges, custom_ops)
        if dynamic_conv and not steps
        else None,
        "notes": notes,
    }
    shared.answer(json_to, result, lambda: _show(result))
    return 0


def _keeping(notes: list[str], lines: Sink) -> Sink:
    from ortune.core.event import Note

    def sink(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        lines(event)

    return sink


def _timed(
    model: Path,
    out: Path,
    data: str | None,
    shapes: Sequence[str],
    ranges: Sequence[str],
    custom_ops: Sequence[str],
) -> Mapping[str, float]:
    """Return the latency of the result over the source's, with its interval."""
    from ortune.analysis.benchmark.bench import bench

    found = bench(
        [model, out],
        on=shared.equipped("cpu", custom_ops),
        data=data,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        seconds=_BENCH_SECONDS,
    )
    ratio: Mapping[str, float] = found["ratios"][1]
    return ratio


def _show(result: Mapping[str, Any]) -> None:
    before, after, ratio = result["bytes_before"], result["bytes_after"], result["latency_ratio"]
    change = f"{100 * (after - before) / before:+.0f} %"
    held = ", ".join(f"{name} {shared.size(size)}" for name, size in result["weights"].items())
    rows = [
        ("size", f"{shared.size(before)} before, {shared.size(after)} after ({change})"),
        ("weights", held or "none"),
    ]
    if scores := result["compared"]:
        text = ", ".join(f"{score['metric']} {score['value']:.5g}" for score in scores)
        rows.append(("against the source", f"{text} ({scores[0]['samples']} samples)"))
    if ratio:
        spread = f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
        rows.append(("latency", f"{ratio['value']:.2f} times the source's {spread}"))
    shared.table(("", str(result["output"])), rows)
