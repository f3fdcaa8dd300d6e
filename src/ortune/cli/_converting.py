"""The work behind `ortune convert`: which steps an order means, and making the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.cli import _formats, _precisions
from ortune.cli._excluding import leave_out
from ortune.core.errors import BadModel, BadSettings, Refused
from ortune.core.event import Note, Sink

if TYPE_CHECKING:
    from ortune.calibration.ranges_file import SavedRanges
    from ortune.core.facts import Facts
    from ortune.core.step import Step
    from ortune.core.trial import Edit
    from ortune.data.feeds import Feeds


@dataclass(frozen=True)
class Order:
    """What is to be made.

    Attributes:
        precision: fp32, fp16, bf16, fp8, int8 or int4; None keeps what the model has.
        target: cpu or gpu.
        level: disabled, basic, extended or all.
        static: There are samples to calibrate on, or ranges.
        known: There are ranges.
        augmented: The samples get altered copies.
        exclude_from: Measured sensitivities: what costs more than `threshold` stays in float.
        threshold: Of accuracy; None is the usual one.
        form: qdq keeps pairs, qoperator writes integer operators; None leaves it to the level:
            onnxruntime fuses pairs from extended on.
        custom_ops: Libraries of operators that the model needs.
    """

    precision: str | None = None
    target: str = "cpu"
    level: str = "extended"
    per_channel: bool = True
    reduce_range: bool = False
    dynamic_conv: bool = False
    static: bool = False
    known: bool = False
    augmented: bool = False
    exclude_from: Path | None = None
    threshold: float | None = None
    form: str | None = None
    custom_ops: tuple[str, ...] = ()

    @property
    def portable(self) -> bool:
        """Only our own rewrites: onnxruntime's would store float32 weights or CPU operators."""
        own = self.target == "gpu" or self.form == "qdq"
        return own or self.precision in _precisions.PORTABLE

    @property
    def folds(self) -> bool:
        """Weights of convolutions are kept as integers and widened when the model loads."""
        return self.precision == "int8" and not self.static and not self.dynamic_conv

    def check(self) -> None:
        """Refuse what cannot be had, before anything is read.

        Raises:
            BadSettings: An option does not go with the others.
        """
        lossy, ranged = _precisions.CALIBRATED, _precisions.RANGED
        for given, name, wanted in (
            (self.known, "--ranges-from", ranged),
            (self.augmented, "--augment", lossy),
            (self.exclude_from is not None, "--exclude-from", lossy),
            (self.threshold is not None, "--threshold", lossy),
        ):
            if given and self.precision not in wanted:
                raise BadSettings(
                    f"{name} is about {', '.join(wanted)}", fix="add --precision int8"
                )
        _precisions.refuse(self.precision, self.target, static=self.static)
        _formats.refuse(self.form, self.precision, static=self.static)
        if self.precision != "int8":
            for given, name in (
                (not self.per_channel, "--no-per-channel"),
                (self.reduce_range, "--reduce-range"),
                (self.dynamic_conv, "--dynamic-conv"),
            ):
                if given:
                    raise BadSettings(f"{name} is about int8", fix="add --precision int8")
        elif self.target == "gpu" and not self.static:
            raise BadSettings(
                "dynamic int8 does not run on a GPU: DynamicQuantizeLinear, MatMulInteger and "
                "ConvInteger have no GPU kernel",
                fix="use --precision fp16, or give --data for static symmetric int8 (QDQ)",
            )
        elif self.dynamic_conv and self.static:
            raise BadSettings(
                "--dynamic-conv is for int8 without data", fix="leave --dynamic-conv or --data out"
            )

    def advice(self) -> Sequence[Note]:
        """Return what a person should know about the file that they asked for."""
        from ortune.measurement.machine.machine import machine

        found = []
        if self.level == "all" and not self.portable:
            found.append(
                Note(
                    "--opt-level all binds the file to this hardware: it may be slow or fail "
                    "elsewhere; --opt-level extended makes one that runs on any CPU",
                    warning=True,
                )
            )
        if self.level == "all" and self.portable:
            found.append(
                Note(
                    "--opt-level all holds the portable rewrites of extended here; the runtime "
                    "adds what is bound to the hardware when it loads the file"
                )
            )
        vnni = "vnni" in machine()["instruction sets"]
        if self.precision == "int8" and self.target == "cpu" and not (vnni or self.reduce_range):
            found.append(
                Note(
                    "this CPU has no VNNI: sums of 8-bit products may saturate; "
                    "--reduce-range avoids it",
                    warning=True,
                )
            )
        return found


@dataclass(frozen=True)
class Given:
    """What there is to calibrate with.

    Attributes:
        feeds: Samples, altered copies included; made-up ones only compare.
        known: Ranges of an earlier calibration.
    """

    feeds: Feeds | None
    known: SavedRanges | None = None


@dataclass(frozen=True)
class Converted:
    """A converted file that is not in its place yet."""

    path: Path
    edits: tuple[Edit, ...]


def make(model: Path, order: Order, given: Given, folder: Path, sink: Sink) -> Converted:
    """Convert into a folder.

    Raises:
        OrtuneError: The model has nothing to convert, or the runtime does not take the result.
    """
    from ortune.core.step import Recipe
    from ortune.measurement.offline import optimize_offline
    from ortune.model.analysis.facts import facts
    from ortune.model.io import file
    from ortune.recipe.build import build
    from ortune.transforms.dequantize_at_load import DequantizeAtLoad

    found = facts(file.load(model))
    _convertible(model, order, found)
    path = model
    edits: tuple[Edit, ...] = ()
    lossy = quantizers(order)
    refused: list[Refused] = []
    groups: list[tuple[Step, ...]] = [(step,) for step in lossy]
    if lossy or order.portable:
        groups.insert(0, rewrites(order.level, found))
    for index, steps in enumerate(groups):
        target = folder / f"{index}" / model.name
        target.parent.mkdir()
        try:
            recipe = Recipe(order.precision or "as-is", steps)
            built = build(
                path,
                recipe,
                target,
                feeds=given.feeds,
                known=given.known,
                custom_ops=order.custom_ops,
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
    if order.target == "cpu" and order.level != "disabled" and not order.portable:
        out, ops = folder / model.name, order.custom_ops
        path = optimize_offline(path, order.level, out, custom_ops=ops)
    if lossy and order.folds:
        folded = build(path, Recipe("at load", (DequantizeAtLoad(),)), folder / "folded.onnx")
        path, edits = folded.path, edits + folded.edits
    return Converted(path, edits)


def rewrites(level: str, found: Facts) -> tuple[Step, ...]:
    """Return the exact steps of a level: none, folding, or all that apply."""
    from ortune.core.step import Stage
    from ortune.recipe.space import clean

    if level == "disabled":
        return ()
    steps = clean(found).steps
    if level == "basic":
        return tuple(s for s in steps if getattr(s, "stage", Stage.FINISH) <= Stage.FOLD)
    return steps


def quantizers(order: Order) -> tuple[Step, ...]:
    """Return the lossy steps of an order."""
    if order.precision is None:
        return _formats.written((), order.form)
    if order.precision not in _precisions.CALIBRATED:
        return ()
    if order.precision != "int8":
        made = [_other(order)]
        return leave_out(made, order.exclude_from, order.threshold)
    grid = {"per_channel": order.per_channel, "reduce_range": order.reduce_range}
    if order.static:
        gpu = {"target": "tensorrt"} if order.target == "gpu" else {}
        made = [_quantizer("int8-static", head=True, **grid, **gpu)]
        made += _formats.written((), order.form)
    else:
        dynamic = _quantizer("int8-dynamic", conv=order.dynamic_conv, **grid)
        made = [dynamic, _quantizer("int8-weights")]
    return leave_out(made, order.exclude_from, order.threshold)


def _other(order: Order) -> Step:
    """Return the one step of a lossy precision that is not int8."""
    match order.precision:
        case "int4":
            sampled = order.static and not order.known
            return _quantizer("int4-weights", **({"method": "gptq"} if sampled else {}))
        case name:
            return _quantizer(str(name))


def _quantizer(name: str, **fields: object) -> Step:
    from ortune.core.plugins import catalog, codec
    from ortune.core.step import Quantizer

    return codec.build(catalog.load(Quantizer, name), fields)


def _convertible(model: Path, order: Order, found: Facts) -> None:
    halves = {"float16", "bfloat16"} & set(found.precisions)
    if order.precision == "fp32" and (halves or found.quantized):
        held = ", ".join(sorted(halves)) or "integer arithmetic"
        raise BadModel(
            f"{model.name} holds {held}, which cannot be turned back into fp32",
            fix="convert the original float32 model, or leave --precision out",
        )
    if order.precision in ("int8", "int4", "fp8") and found.quantized:
        raise BadModel(
            f"{model.name} is quantized already",
            fix="convert the original float32 model, or leave --precision out",
        )
