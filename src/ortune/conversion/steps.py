"""Which steps a conversion means, and making the file."""

from __future__ import annotations

from pathlib import Path

from ortune.conversion import formats, precisions
from ortune.conversion.exclusions import leave_out
from ortune.conversion.requests import Convert
from ortune.conversion.samples import ConversionData
from ortune.core.errors import BadModel, Refused
from ortune.core.event import Note
from ortune.core.facts import Facts
from ortune.core.plugins import catalog, codec
from ortune.core.step import Edit, Quantizer, Recipe, Stage, Step
from ortune.measurement.offline import optimize_offline
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.recipe.build import build
from ortune.recipe.built import Built
from ortune.recipe.space import clean
from ortune.transforms.dequantize_at_load import DequantizeAtLoad


def make(asked: Convert, given: ConversionData, folder: Path) -> Built:
    """Convert into a folder.

    Raises:
        OrtuneError: The model has nothing to convert, or the runtime does not take the result.
    """

    model, sink = Path(asked.model), asked.sink
    found = facts(file.load(model))
    check_source(asked, found)
    path = model
    edits: tuple[Edit, ...] = ()
    lossy = quantizers(asked)
    refused: list[Refused] = []
    groups: list[tuple[Step, ...]] = [(step,) for step in lossy]
    if lossy or asked.portable:
        groups.insert(0, rewrites(asked.level, found))
    for index, steps in enumerate(groups):
        target = folder / f"{index}" / model.name
        target.parent.mkdir()
        try:
            recipe = Recipe(asked.precision or "as-is", steps)
            built = build(
                path,
                recipe,
                target,
                feeds=given.feeds,
                known=given.known,
                custom_ops=asked.custom_ops,
                sink=sink,
            )
        except Refused as error:
            refused.append(error)
            continue
        for done in built.edits if set(steps) & set(lossy) else ():
            if done.note:
                sink(Note(f"{done.step}: {done.note}"))
        path, edits = built.path, (*edits, *built.edits)
    if refused and len(refused) == len(lossy):
        raise refused[0]
    for one in refused:
        sink(Note(one.what))
    if asked.target == "cpu" and asked.level != "disabled" and not asked.portable:
        out, ops = folder / model.name, asked.custom_ops
        path = optimize_offline(path, asked.level, out, custom_ops=ops)
    if lossy and asked.folds:
        folded = build(path, Recipe("at load", (DequantizeAtLoad(),)), folder / "folded.onnx")
        path, edits = folded.path, edits + folded.edits
    return Built(path, edits)


def rewrites(level: str, found: Facts) -> tuple[Step, ...]:
    """Return the exact steps of a level: none, folding, or all that apply."""

    if level == "disabled":
        return ()
    steps = clean(found).steps
    if level == "basic":
        return tuple(s for s in steps if getattr(s, "stage", Stage.FINISH) <= Stage.FOLD)
    return steps


def quantizers(asked: Convert) -> tuple[Step, ...]:
    """Return the lossy steps of an asked."""
    if asked.precision is None:
        return formats.written((), asked.format)
    if asked.precision not in precisions.CALIBRATED:
        return ()
    if asked.precision != "int8":
        made = [_other(asked)]
        return leave_out(made, asked.exclude_from, asked.threshold)
    grid = {"per_channel": asked.per_channel, "reduce_range": asked.reduce_range}
    if asked.static:
        rules = {} if asked.target == "cpu" else {"target": asked.integers}
        made = [_quantizer("int8-static", head=True, **grid, **rules)]
        made += formats.written((), asked.format)
    else:
        dynamic = _quantizer("int8-dynamic", conv=asked.dynamic_conv, **grid)
        made = [dynamic, _quantizer("int8-weights")]
    return leave_out(made, asked.exclude_from, asked.threshold)


def _other(asked: Convert) -> Step:
    match asked.precision:
        case "int4":
            sampled = asked.static and asked.ranges_from is None
            method = {"method": "gptq"} if sampled else {}
            # TensorRT knows no operator of onnxruntime's own: blocks behind DequantizeLinear.
            form = {"form": "qdq"} if asked.target == "tensorrt" else {}
            return _quantizer("int4-weights", **method, **form)
        case name:
            return _quantizer(str(name))


def _quantizer(name: str, **fields: object) -> Step:

    return codec.build(catalog.load(Quantizer, name), fields)


def check_source(asked: Convert, found: Facts) -> None:
    """Refuse a model that cannot be turned into the precision.

    Raises:
        BadModel: Its weights or arithmetic are of lower precision already.
    """
    halves = {"float16", "bfloat16"} & set(found.precisions)
    if asked.precision == "fp32" and (halves or found.quantized):
        held = ", ".join(sorted(halves)) or "integer arithmetic"
        raise BadModel(
            f"{Path(asked.model).name} holds {held}, which cannot be turned back into fp32",
            fix="convert the original float32 model, or leave --precision out",
        )
    if asked.precision in ("int8", "int4", "fp8") and found.quantized:
        raise BadModel(
            f"{Path(asked.model).name} is quantized already",
            fix="convert the original float32 model, or leave --precision out",
        )
