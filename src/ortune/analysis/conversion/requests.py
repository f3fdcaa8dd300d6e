"""What `apply` and `convert` are asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ortune.core.backend import GraphLevel, graph_level
from ortune.core.custom_ops import CustomOpsRequest
from ortune.core.errors import BadSettings
from ortune.core.fields import Field, File, Model, Option
from ortune.core.request import DataRequest, request
from ortune.data.sequences.request import SequenceRequest
from ortune.quantizers.common.qdq import runtime_rules

if TYPE_CHECKING:
    from ortune.analysis.conversion.steps import ConversionInputs

Format: TypeAlias = Literal["qdq", "qoperator"]
Target: TypeAlias = Literal["cpu", "gpu", "tensorrt", "cuda", "directml"]


class PictureSize(Field[tuple[int, int] | None, str]):
    """Height and width, or a text such as ``480x640``."""

    metavar = "HxW"

    def read(self, value: Any) -> tuple[int, int] | None:
        if isinstance(value, str):
            match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", value.strip())
            if match is None:
                raise BadSettings(
                    f"cannot read the size '{value[:40]}'", fix="write height x width: 480x640"
                )
            return int(match[1]), int(match[2])
        return None if value is None else (value[0], value[1])

    def spell(self, value: tuple[int, int] | None) -> str | None:
        return None if value is None else f"{value[0]}x{value[1]}"


@request
class ConversionRequest(SequenceRequest, CustomOpsRequest, DataRequest):
    """What both have in common.

    Attributes:
        ranges_from: Ranges from `ortune calibrate -o`, or a TensorRT calibration cache.
        augment: Augmented copies to calibrate on too, such as "noise(db=30),flip,scale"; never
            scored.
        exclude_from: Leave nodes in float whose region costs more accuracy than --threshold: a
            JSON list of regions with nodes and accuracy_cost.
        threshold: Highest accuracy cost of a region that is quantized.
        format: How static int8 is written: Q/DQ pairs around float operators, or integer
            operators.
        fold_preprocess: Put the preprocessing that this file describes into the model, which then
            takes uint8 NHWC pictures.
        picture_size: Size of all pictures, such as 480x640; any size if not given.
        fold_postprocess: Let an output give uint8, argmax, softmax or "top-k(k=5, output=logits)".
        force: Overwrite an existing output, and write a result that is far from the source.
    """

    _: KW_ONLY
    ranges_from: File | None = None
    augment: Annotated[str | None, Option("SPECS")] = None
    exclude_from: File | None = None
    threshold: Annotated[float | None, Option("COST", shown="0.01")] = None
    format: Format | None = None
    fold_preprocess: Annotated[str | Path | None, Option("FILE.toml")] = None
    picture_size: PictureSize = PictureSize(None, Option("HxW", low=1, high=65535))
    fold_postprocess: Annotated[Sequence[str], Option("WHAT")] = ()
    force: bool = False

    def read_inputs(self, model: Path) -> ConversionInputs:
        """Return what to calibrate and compare on, every text of it read.

        Raises:
            OrtuneError: How to alter samples cannot be read.
        """
        # A request is made without NumPy.
        from ortune.analysis.conversion.steps import ConversionInputs
        from ortune.data.augment import parse_augmentations

        return ConversionInputs(
            model=model,
            data=self.data,
            shapes=self.shapes,
            ranges=self.ranges,
            sequence=self.sequence,
            state=tuple(self.state),
            custom_ops=self.custom_ops,
            ranges_from=None if self.ranges_from is None else Path(self.ranges_from),
            augmentations=() if self.augment is None else parse_augmentations(self.augment),
        )


@request
class Apply(ConversionRequest):
    """Apply STEPs to MODEL in the order given and write the result.

    A step is a transform or a quantizer with its fields, or a rule of your own: FILE.py:NAME.
    Transforms that would change structure, types or numbers are rolled back; the result is then
    written without them, and the exit code is 1. Static quantizers calibrate on --data, or take
    the ranges of an earlier calibration with --ranges-from. A quantized result that answers with
    NaN is written by --force alone. Behind all steps, --fold-preprocess and --fold-postprocess
    change what the model takes and gives.

    Example:
        ortune apply model.onnx simplify fuse-batch-norm -o clean.onnx
        ortune apply model.onnx simplify "int8-static(observer=percentile)" --data D -o out.onnx
        ortune apply model.onnx --fold-preprocess photos/preprocess.toml -o takes_pictures.onnx

    Attributes:
        model: The model file.
        steps: Steps, spelled.
        out: The new model.

    Raises:
        OrtuneError: The model, a step or an option cannot be used, or the output exists.
    """

    model: Model
    steps: Annotated[Sequence[str], Option("STEP...")] = ()
    _: KW_ONLY
    out: Annotated[str | Path, Option("PATH", "-o --out")]


@request
class Convert(ConversionRequest):
    """Convert MODEL to OUT exactly as asked; `ortune optimize` finds out what pays.

    int8 with --data or --ranges-from is static (QDQ). Without them matrix products and LSTMs are
    dynamic, and convolutions keep int8 weights in the file and compute in float32. With --data,
    fp16 and bf16 find which nodes must stay float32, and int4 rounds weights better; fp8 needs it.
    The result is loaded, compared with MODEL and only then written: one with NaN in its outputs,
    or with a larger error than the precision explains, only with --force. Constants are folded
    where that does not grow the file.

    Example:
        ortune convert model.onnx out.onnx --precision int8 --data samples/
        ortune convert model.onnx out.onnx --precision int8 --target tensorrt --data samples/
        ortune convert model.onnx out.onnx --precision fp16 --target cuda --opt-level basic

    Attributes:
        model: The model file.
        out: The new model.
        precision: Precision of weights and arithmetic; unchanged if not given.
        target: What will run the file; gpu is any GPU, with int8 as TensorRT takes it.
        opt_level: Level of graph optimization; all binds the file to this hardware.
        per_channel: int8: one weight scale per channel, or one per tensor.
        reduce_range: int8: 7-bit weights, for CPUs without VNNI.
        dynamic_conv: int8 without data: ConvInteger, slow on CPUs.

    Raises:
        OrtuneError: The model has nothing to convert, an option does not go with the others, or
            the result is not what was asked or does not run.
    """

    model: Model
    out: str | Path
    _: KW_ONLY
    precision: Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"] | None = None
    target: Target = "cpu"
    opt_level: GraphLevel = "extended"
    per_channel: bool = True
    reduce_range: bool = False
    dynamic_conv: Annotated[bool, Option(hidden=True)] = False

    @property
    def level(self) -> GraphLevel:
        """`opt_level` by its one name: disable is disabled."""
        return graph_level(self.opt_level)

    @property
    def integers(self) -> runtime_rules.Target:
        """Whose rules static int8 follows: of all GPU providers TensorRT alone has the kernels."""
        return "tensorrt" if self.target == "gpu" else self.target

    @property
    def static(self) -> bool:
        """There are samples to calibrate on, or ranges."""
        return self.data is not None or self.ranges_from is not None

    @property
    def portable(self) -> bool:
        """Only our own rewrites: onnxruntime's would store float32 weights or CPU operators."""
        needs_own_rewrites = self.target != "cpu" or self.format == "qdq"
        return needs_own_rewrites or self.precision in ("fp16", "bf16", "fp8", "int4")

    @property
    def folds(self) -> bool:
        """Weights of convolutions are kept as integers and widened when the model loads."""
        return self.precision == "int8" and not self.static and not self.dynamic_conv
