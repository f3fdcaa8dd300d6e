"""Let the model do what a caller would do to pictures first."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import preprocess, wording
from ortune.core.errors import BadData, BadModel, BadSettings
from ortune.core.plugins import codec
from ortune.core.plugins.bounds import ANY, Bounds
from ortune.core.session import Tensors
from ortune.core.step import Bridge, Stage, Transform
from ortune.graph.ir import edit, prune
from ortune.transforms.common.formulas.formula import Chain
from ortune.transforms.common.layers import affine
from ortune.transforms.common.raise_version import raise_to

MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
"""Pillow's interpolation -> Resize's; it has no other."""


@dataclass(frozen=True)
class Picture:
    """What is written."""

    settings: preprocess.Preprocess  # in full
    size: tuple[int, int] | None  # height and width of the pictures; None takes any
    rank: int  # of the tensor, 3 or 4
    dtype: ir.DataType  # of the tensor

    @property
    def target(self) -> tuple[int, int] | None:
        """Height and width behind the resize, where they are known."""
        resize = self.settings.resize
        if isinstance(resize, tuple):
            return resize
        if self.size is None:
            return None
        if resize is None:
            return self.size
        width, height = preprocess.compute_resized_size((self.size[1], self.size[0]), resize)
        return height, width

    @property
    def resizes(self) -> bool:
        """Whether a Resize is needed."""
        return self.settings.resize is not None and (self.size is None or self.target != self.size)

    def compute_scale_and_shift(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a and b of tensor = a * pixel + b, one a channel in the order as fed."""
        mean, std = (
            np.broadcast_to(preprocess.per_channel(self.settings, name), self.settings.depth)
            for name in ("mean", "std")
        )
        divided = std.astype(np.float64)
        scale: NDArray[np.float64] = np.float64(self.settings.scale) / divided
        return scale, -mean.astype(np.float64) / divided


def write_preprocessing(
    chain: Chain, value: ir.Value, picture: Picture, readers: Sequence[ir.Node]
) -> ir.Value:
    """Write all nodes and return the tensor; a convolution that reads it takes the scale in."""
    settings = picture.settings
    if picture.rank == 3 and (picture.resizes or settings.crop is not None):
        value = chain.add("Unsqueeze", value, chain.add_constant("front", [0]))
    if picture.resizes:
        value = _add_resize(chain, value, picture)
    if settings.crop is not None:
        value = _add_crop(chain, value, picture)
    if picture.rank == 3 and (picture.resizes or settings.crop is not None):
        value = chain.add("Squeeze", value, chain.add_constant("front", [0]))
    if settings.layout == "NCHW":
        order = [0, 3, 1, 2] if picture.rank == 4 else [2, 0, 1]
        value = chain.add("Transpose", value, attributes={"perm": order})
    scale, shift = picture.compute_scale_and_shift()
    conv = _find_absorbing_conv(readers, picture)
    flips = settings.channels == "bgr"
    remaining_shift = (
        _fold_scale_into_weights(chain.editor, conv, scale, shift, flips=flips)
        if conv is not None
        else None
    )
    if remaining_shift is not None:
        scale, shift, flips = np.ones_like(scale), remaining_shift, False
    if flips:
        axis = -3 if settings.layout == "NCHW" else -1
        order_of = chain.add_constant("bgr", [2, 1, 0])
        value = chain.add("Gather", value, order_of, attributes={"axis": axis})
    if picture.dtype == ir.DataType.UINT8 and not shift.any() and (scale == 1).all():
        return value
    shape = (-1, 1, 1) if settings.layout == "NCHW" else (-1,)
    value = chain.add_cast(value, ir.DataType.FLOAT)
    if (scale != 1).any():
        factor = chain.add_constant("scale", scale.reshape(shape), np.float32)
        value = chain.add("Mul", value, factor)
    if shift.any():
        summand = chain.add_constant("shift", shift.reshape(shape), np.float32)
        value = chain.add("Add", value, summand)
    if picture.dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        low, high = (0, 255) if picture.dtype == ir.DataType.UINT8 else (-128, 127)
        limits = [chain.add_constant("limit", edge, np.float32) for edge in (low, high)]
        value = chain.add("Clip", chain.add("Round", value), *limits)
    return value if picture.dtype == ir.DataType.FLOAT else chain.add_cast(value, picture.dtype)


def _add_resize(chain: Chain, value: ir.Value, picture: Picture) -> ir.Value:
    """Resize bytes as Pillow does: antialiased, weights outside of the picture left out."""
    settings = picture.settings
    attributes: dict[str, object] = {"mode": MODES[settings.interpolation], "axes": [1, 2]}
    if settings.interpolation == "nearest":
        attributes |= {"nearest_mode": "round_prefer_ceil"}
    else:
        attributes |= {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
    resize = settings.resize
    if picture.target is not None:
        sizes = chain.add_constant("size", picture.target)
    else:
        side = float(resize) if isinstance(resize, int) else 0.0
        shape = chain.add("Shape", value, attributes={"start": 1, "end": 3})
        exact_shape = chain.add_cast(shape, ir.DataType.DOUBLE)
        shorter = chain.add("ReduceMin", exact_shape, attributes={"keepdims": 0})
        factor = chain.add("Div", chain.add_constant("side", side, np.float64), shorter)
        rounded = chain.add("Round", chain.add("Mul", exact_shape, factor))
        whole = chain.add_cast(rounded, ir.DataType.INT64)
        sizes = chain.add("Max", whole, chain.add_constant("shorter", [int(side)]))
    return chain.add("Resize", value, None, None, sizes, attributes=attributes)


def _add_crop(chain: Chain, value: ir.Value, picture: Picture) -> ir.Value:
    """Cut the centre out, at Pillow's offsets: half a pixel goes to the even side."""
    settings, target = picture.settings, picture.target
    size = preprocess.make_pair(settings.crop or 0)
    axes = chain.add_constant("axes", [1, 2])
    if target is not None:
        begin = [round((whole - part) / 2) for whole, part in zip(target, size, strict=True)]
        if not any(begin) and target == size:
            return value
        end = [at + part for at, part in zip(begin, size, strict=True)]
        first, last = chain.add_constant("begin", begin), chain.add_constant("end", end)
        return chain.add("Slice", value, first, last, axes)
    crop_size = chain.add_constant("crop", size)
    shape = chain.add("Shape", value, attributes={"start": 1, "end": 3})
    spare = chain.add_cast(chain.add("Sub", shape, crop_size), ir.DataType.DOUBLE)
    halves = chain.add("Mul", spare, chain.add_constant("half", 0.5, np.float64))
    first = chain.add_cast(chain.add("Round", halves), ir.DataType.INT64)
    cut = chain.add("Slice", value, first, chain.add("Add", first, crop_size), axes)
    # A picture that is smaller than the crop must fail here, not go on in another size.
    return chain.add("Reshape", cut, chain.add_constant("to", [0, *size, settings.depth]))


def _find_absorbing_conv(
    readers: Sequence[ir.Node], picture: Picture
) -> affine.FoldableLayer | None:
    """Return the convolution that may take the scale in, if it alone reads the tensor."""
    fits = picture.settings.layout == "NCHW" and picture.rank == 4
    at = affine.as_foldable_layer(readers[0]) if fits and len(readers) == 1 else None
    if at is None or at.node.op_type != "Conv" or picture.dtype != ir.DataType.FLOAT:
        return None
    return at if at.group == 1 and at.inputs == picture.settings.depth else None


def _fold_scale_into_weights(
    editor: edit.Editor,
    at: affine.FoldableLayer,
    scale: NDArray[np.float64],
    shift: NDArray[np.float64],
    *,
    flips: bool,
) -> NDArray[np.float64] | None:
    """Let weights take the scale and the order of channels; return the shift that is left.

    Where zeros pad the tensor the sum over the taps is another at the border: there the pixels
    are shifted by b / a first, and the zeros stay zeros. None where the weights cannot change.
    """
    x = at.node.inputs[0]
    remaining_shift = shift / scale if at.has_padding else np.zeros_like(shift)
    absorbed_shift = np.zeros_like(shift) if at.has_padding else shift
    absorbed = affine.Affine(scale, absorbed_shift)
    if x is None or affine.Absorber(editor).absorb_input_affine(at, absorbed, x) is not None:
        return None
    weights = edit.const_array(at.node.inputs[1])
    if flips and weights is not None:
        turned = np.ascontiguousarray(weights[:, ::-1])
        at.node.replace_input_with(1, editor.add_constant(f"{at.node.name}_turned", turned))
    return remaining_shift[::-1] if flips else remaining_shift


_RESIZED = 30.0
"""Decibels where a picture is resized by Resize on one side and by Pillow on the other."""
_SIXTEEN = 50.0
"""Decibels where the tensor has 16 bits: one rounding more or less shows."""


class Pictures(Bridge):
    """Tensors go over as the pictures they would come from; those go back through Pillow.

    A tensor holds what is left of a picture behind resize and crop. The picture made back is
    surrounded by its edge where something was cropped, and repeats pixels where its size is fixed.
    """

    def __init__(self, name: str, picture: Picture, dtype: np.dtype[Any]) -> None:
        self._name, self._picture, self._dtype = name, picture, dtype
        if picture.resizes and picture.size is not None:
            self.decibels = _RESIZED
        elif dtype.itemsize == 2:
            self.decibels = _SIXTEEN

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        tensor = old[self._name]
        several = tensor.ndim == 4
        pictures = [self._reconstruct_picture(i) for i in (tensor if several else tensor[None])]
        yield {**old, self._name: np.stack(pictures) if several else pictures[0]}

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Preprocess pictures as the house does.

        Raises:
            BadData: Pillow is missing.
        """
        pictures = new[self._name]
        several = pictures.ndim == 4
        tensors = [self._preprocess_picture(p) for p in (pictures if several else pictures[None])]
        values = (np.stack(tensors) if several else tensors[0]).astype(self._dtype)
        return [{**new, self._name: values}]

    def _preprocess_picture(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        settings = self._picture.settings
        if settings.resize is not None or settings.crop is not None:
            try:
                from PIL import Image
            except ImportError:
                raise BadData(
                    "comparing resized pictures needs Pillow", fix="pip install pillow"
                ) from None
            image = Image.fromarray(picture[..., 0] if settings.depth == 1 else picture)
            picture = preprocess.resize_and_crop(image, settings, "a sample")
        return preprocess.normalize_pixels(picture, settings)

    def _reconstruct_picture(self, tensor: NDArray[Any]) -> NDArray[np.uint8]:
        settings = self._picture.settings
        values = np.asarray(tensor, np.float64)
        if settings.layout == "NCHW":
            values = values.transpose(1, 2, 0)
        scale, shift = self._picture.compute_scale_and_shift()
        picture: NDArray[np.uint8] = np.clip(np.rint((values - shift) / scale), 0, 255).astype(
            "u1"
        )
        if settings.channels == "bgr":
            picture = picture[..., ::-1]
        if settings.crop is not None:
            picture = _pad_to_size(picture, self._before_crop(picture.shape))
        size = self._picture.size
        return np.ascontiguousarray(picture if size is None else _resize_by_nearest(picture, size))

    def _before_crop(self, shape: tuple[int, ...]) -> tuple[int, int]:
        target, resize = self._picture.target, self._picture.settings.resize
        if target is not None:
            return target
        side = resize if isinstance(resize, int) else 0
        return max(side, shape[0]), max(side, shape[1])


def _pad_to_size(values: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Give a picture an edge so that the crop of `size` finds it again."""
    spare = [max(0, whole - part) for whole, part in zip(size, values.shape, strict=False)]
    begin = [round(margin / 2) for margin in spare]
    pads = [(at, margin - at) for at, margin in zip(begin, spare, strict=True)]
    return np.pad(values, [*pads, (0, 0)], mode="edge")


def _resize_by_nearest(values: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    height, width = size
    rows, columns = (
        np.arange(target_length) * have // target_length
        for target_length, have in ((height, values.shape[0]), (width, values.shape[1]))
    )
    resized: NDArray[np.uint8] = values[rows][:, columns]
    return resized


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
    keeps_io: ClassVar[bool] = False

    input: str = ""
    resize: preprocess.Size | None = None
    crop: preprocess.Size | None = None
    interpolation: preprocess.Interpolation = "bilinear"
    channels: Literal["", "rgb", "bgr", "gray"] = ""
    scale: Annotated[float | None, ANY] = None
    mean: Annotated[float | tuple[float, ...], ANY] = 0.0
    std: Annotated[float | tuple[float, ...], ANY] = 1.0
    layout: Literal["", "NCHW", "NHWC"] = ""
    size: Annotated[tuple[int, int] | None, Bounds(1, 65535)] = None

    def bridge(self, model: ir.Model) -> Bridge:
        value = self._select_input(model)
        kind = value.dtype or ir.DataType.FLOAT
        return Pictures(value.name or "", self._complete_settings(value), kind.numpy())

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes were added.

        Raises:
            OrtuneError: The model has no such input, or the settings do not fit it.
        """
        value = self._select_input(model)
        picture = self._complete_settings(value)
        version = _ANTIALIAS if picture.resizes else _AXES_AS_INPUTS
        if 0 < model.opset_imports.get("", 0) < version:
            raise_to(model, version)
            edit.add_note(model, f"raised to opset {version}")
            value = self._select_input(model)
        graph, name = model.graph, value.name
        shape = list(edit.shape_of(value) or ())
        if picture.settings.layout == "NCHW":
            shape = [*shape[:-3], *shape[-2:], shape[-3]]
        shape[-1] = picture.settings.depth
        if picture.size is not None:
            shape[-3:-1] = picture.size
        elif picture.settings.resize is not None or picture.settings.crop is not None:
            shape[-3:-1] = ["picture_height", "picture_width"]
        pixels = ir.Value(name=name, type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape(shape))
        chain = Chain(edit.Editor(graph), f"{name}_folded")
        readers = [] if value.is_graph_output() else [node for node, _ in value.uses()]
        tensor = write_preprocessing(chain, pixels, picture, readers)
        tensor.type, tensor.shape = value.type, value.shape
        value.replace_all_uses_with(tensor)
        graph.inputs[graph.inputs.index(value)] = pixels
        edit.insert_first(graph, *chain.nodes)
        prune.drop_dead(model)
        model.metadata_props["ortune.preprocess"] = str(picture.settings)
        return len(chain.nodes)

    def _select_input(self, model: ir.Model) -> ir.Value:
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        matches = [value for value in inputs if value.name == self.input]
        if not self.input and len(inputs) == 1:
            matches = inputs
        if not matches:
            several = wording.format_count(len(inputs), "input")
            problem = f"no input '{self.input}'" if self.input else several
            raise BadModel(
                f"pictures for a model with {problem}",
                fix=f"set input to one of: {', '.join(str(value.name) for value in inputs)}",
            )
        (value,) = matches
        if value.is_graph_output():
            raise BadModel(
                f"input '{value.name}' is an output too", fix="take it out of the outputs first"
            )
        return value

    def _complete_settings(self, value: ir.Value) -> Picture:
        """Complete the settings by what the input is, and check them against it."""
        described = edit.describe_value(value)
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
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "size" and getattr(self, field.name) != field.default
        }
        settings = codec.build_dataclass(
            preprocess.Preprocess, {**preprocess.derive_defaults(described, kept), **kept}
        )
        picture = Picture(settings, self.size, len(described.shape), value.dtype)
        _check_picture_size(picture, described.shape, str(value.name))
        return picture


def _check_picture_size(picture: Picture, shape: tuple[int | str | None, ...], name: str) -> None:
    settings, dims = picture.settings, shape[-3:]
    if settings.layout == "NCHW":
        dims = (dims[1], dims[2], dims[0])
    if isinstance(dims[2], int) and dims[2] != settings.depth:
        other = "gray" if dims[2] == 1 else "rgb"
        raise BadModel(
            f"input '{name}' takes {wording.format_count(dims[2], 'channel')}, and a picture of "
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
    if settings.scale == 0 or not all(picture.compute_scale_and_shift()[0]):
        raise BadSettings("scale 0 leaves nothing of a picture", fix="give a factor")
    output_size = (
        preprocess.make_pair(settings.crop) if settings.crop is not None else picture.target
    )
    if output_size is None and isinstance(settings.resize, int):
        output_size = (settings.resize, settings.resize)  # a square picture, at least, must fit
    for actual, expected in zip(output_size or (), dims, strict=False):
        if isinstance(expected, int) and actual != expected:
            height, width = output_size or (0, 0)
            raise BadSettings(
                f"pictures become {height}x{width}, and input '{name}' takes {dims[0]}x{dims[1]}",
                fix=f"set resize = [{dims[0]}, {dims[1]}], or crop to it",
            )
    whole = picture.target
    if settings.crop is not None and whole is not None:
        cut = preprocess.make_pair(settings.crop)
        if any(part > side for part, side in zip(cut, whole, strict=True)):
            raise BadSettings(
                f"a crop of {cut[0]}x{cut[1]} from pictures of {whole[0]}x{whole[1]}",
                fix="resize to more first, or crop less",
            )
