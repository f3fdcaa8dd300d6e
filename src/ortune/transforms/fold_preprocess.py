"""Let the model do what a caller would do to pictures first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import onnx_ir as ir

from ortune.core import preprocess, wording
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import codec
from ortune.core.plugins.bounds import ANY, Bounds
from ortune.core.preprocess import Interpolation, Preprocess, Size
from ortune.core.step import Bridge, Stage, Transform
from ortune.model.graph import edit, prune, spec
from ortune.rewrites.formulas.formula import Chain
from ortune.rewrites.images.preprocessing import MODES, Picture, Pictures, only_readers, write
from ortune.rewrites.raise_version import raise_to

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
_BYTES = {ir.DataType.UINT8, ir.DataType.INT8}
_ANTIALIAS = 18
_AXES_AS_INPUTS = 13


@dataclass(frozen=True)
class FoldPreprocess(Transform):
    """The model takes plain pictures: uint8 [batch, height, width, channels], in RGB or gray.

    Resize, crop, layout, order of channels and (pixel * scale - mean) / std are done inside. With
    a = scale / std and b = -mean / std the tensor is a p + b; a convolution W without padding that
    alone reads it takes in both, W * (a p + b) = (W a) * p + sum(W b), one that pads with zeros
    takes a, and the pixels are shifted by b / a. The fields are the keys of ``preprocess.toml``,
    and mean what they mean there: ``ortune apply --fold-preprocess preprocess.toml``.

    Resize works on bytes, antialiased as Pillow does it: few pixels differ, by a step of 255.
    efficientnet-lite0 takes 0.96 [0.92, 0.99] of the CPU time that Pillow, NumPy and the model
    take on photographs of 427x640 and more, and 0.97 [0.94, 1.01] at 224x224.

    Attributes:
        input: The input that takes the picture; empty for the only one.
        resize: ``[height, width]``, or a number for the shorter side; None takes the model's own
            height and width where it fixes them and nothing is cropped.
        crop: Of the centre, ``[height, width]`` or a number for both; None keeps all.
        interpolation: nearest, bilinear or bicubic; ONNX has no other.
        channels: Order of the model's channels; empty is rgb, or gray where it takes one.
        scale: Factor for the pixels 0 to 255; None is 1/255, and 1 for a model that takes bytes.
        mean: Taken off after scaling; one number, or one a channel in the order of `channels`.
        std: Divided by last; one number, or one a channel.
        layout: Of the model's tensor; empty reads it off the input's shape.
        size: Height and width of all pictures; None takes any.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    input: str = ""
    resize: Size | None = None
    crop: Size | None = None
    interpolation: Interpolation = "bilinear"
    channels: Literal["", "rgb", "bgr", "gray"] = ""
    scale: Annotated[float | None, ANY] = None
    mean: Annotated[float | tuple[float, ...], ANY] = 0.0
    std: Annotated[float | tuple[float, ...], ANY] = 1.0
    layout: Literal["", "NCHW", "NHWC"] = ""
    size: Annotated[tuple[int, int] | None, Bounds(1, 65535)] = None

    @property
    def keeps_io(self) -> bool:
        """The model takes pictures."""
        return False

    def bridge(self, model: ir.Model) -> Bridge:
        """Make pictures of tensors."""
        value = self._value(model)
        kind = value.dtype or ir.DataType.FLOAT
        return Pictures(value.name or "", self._picture(value), kind.numpy())

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes were added.

        Raises:
            OrtuneError: The model has no such input, or the settings do not fit it.
        """
        value = self._value(model)
        picture = self._picture(value)
        version = _ANTIALIAS if picture.resizes else _AXES_AS_INPUTS
        if 0 < model.opset_imports.get("", 0) < version:
            raise_to(model, version)
            edit.note(model, f"raised to opset {version}")
            value = self._value(model)
        graph, name = model.graph, value.name
        shape = list(spec.shape_of(value) or ())
        if picture.settings.layout == "NCHW":
            shape = [*shape[:-3], *shape[-2:], shape[-3]]
        shape[-1] = picture.settings.depth
        if picture.size is not None:
            shape[-3:-1] = picture.size
        elif picture.settings.resize is not None or picture.settings.crop is not None:
            shape[-3:-1] = ["picture_height", "picture_width"]
        taken = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.UINT8),
            shape=ir.Shape(shape),
        )
        chain = Chain(edit.Editor(graph), f"{name}_folded")
        made = write(chain, taken, picture, only_readers(value))
        made.type, made.shape = value.type, value.shape
        value.replace_all_uses_with(made)
        graph.inputs[graph.inputs.index(value)] = taken
        edit.insert_first(graph, *chain.nodes)
        prune.drop_dead(model)
        model.metadata_props["ortune.preprocess"] = str(picture.settings)
        return len(chain.nodes)

    def _value(self, model: ir.Model) -> ir.Value:
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        found = [value for value in inputs if value.name == self.input]
        if not self.input and len(inputs) == 1:
            found = inputs
        if not found:
            given = (
                f"no input '{self.input}'"
                if self.input
                else f"{wording.count(len(inputs), 'input')}"
            )
            raise BadModel(
                f"pictures for a model with {given}",
                fix=f"set input to one of: {', '.join(str(one.name) for one in inputs)}",
            )
        (value,) = found
        if value.is_graph_output():
            raise BadModel(
                f"input '{value.name}' is an output too", fix="take it out of the outputs first"
            )
        return value

    def _picture(self, value: ir.Value) -> Picture:
        """Complete the settings by what the input is, and check them against it."""
        described = spec.spec(value)
        if described.shape is None or len(described.shape) not in (3, 4):
            raise BadModel(
                f"input '{value.name}' {described.dtype} {described.shape} takes no pictures",
                fix="name the input that does, of shape [batch, channels, height, width]",
            )
        if value.dtype not in _FLOATS | _BYTES:
            raise BadModel(
                f"input '{value.name}' is {described.dtype}, which no picture turns into",
                fix="fold into an input of floats or bytes",
            )
        kept = {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(self)
            if one.name != "size" and getattr(self, one.name) != one.default
        }
        settings = codec.build(Preprocess, {**preprocess.defaults(described, kept), **kept})
        picture = Picture(settings, self.size, len(described.shape), value.dtype)
        _check(picture, described.shape, str(value.name))
        return picture


def _check(picture: Picture, shape: tuple[int | str | None, ...], name: str) -> None:
    settings, dims = picture.settings, shape[-3:]
    if settings.layout == "NCHW":
        dims = (dims[1], dims[2], dims[0])
    if isinstance(dims[2], int) and dims[2] != settings.depth:
        other = "gray" if dims[2] == 1 else "rgb"
        raise BadModel(
            f"input '{name}' takes {wording.count(dims[2], 'channel')}, and a picture of "
            f"{settings.channels} has "
            f"{settings.depth}",
            fix=f'set channels = "{other}"' if dims[2] in (1, 3) else "name another input",
        )
    if settings.interpolation not in MODES and picture.resizes:
        raise BadSettings(
            f"ONNX's Resize has no {settings.interpolation} interpolation",
            fix=f"use {', '.join(MODES)}, or resize outside: leave resize out",
        )
    for field in ("mean", "std"):
        preprocess.per_channel(settings, field)
    if settings.scale == 0 or not all(picture.affine()[0]):
        raise BadSettings("scale 0 leaves nothing of a picture", fix="give a factor")
    made = preprocess.both(settings.crop) if settings.crop is not None else picture.target
    if made is None and isinstance(settings.resize, int):
        made = (settings.resize, settings.resize)  # a square picture, at least, must fit
    for got, wanted in zip(made or (), dims, strict=False):
        if isinstance(wanted, int) and got != wanted:
            height, width = made or (0, 0)
            raise BadSettings(
                f"pictures become {height}x{width}, and input '{name}' takes {dims[0]}x{dims[1]}",
                fix=f"set resize = [{dims[0]}, {dims[1]}], or crop to it",
            )
    whole = picture.target
    if settings.crop is not None and whole is not None:
        cut = preprocess.both(settings.crop)
        if any(part > side for part, side in zip(cut, whole, strict=True)):
            raise BadSettings(
                f"a crop of {cut[0]}x{cut[1]} from pictures of {whole[0]}x{whole[1]}",
                fix="resize to more first, or crop less",
            )
