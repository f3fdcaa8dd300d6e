"""The preprocessing of pictures as nodes: bytes [.., height, width, channels] to a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import preprocess
from ortune.core.preprocess import Preprocess
from ortune.model.graph.edit import Editor, const_array
from ortune.rewrites.formulas.chain import Chain
from ortune.rewrites.layers.affine import Affine
from ortune.rewrites.layers.fold_affine import Absorber
from ortune.rewrites.layers.foldable import FoldableLayer, foldable

MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
"""Pillow's interpolation -> Resize's; it has no other."""


@dataclass(frozen=True)
class Picture:
    """What is written.

    Attributes:
        settings: In full.
        size: Height and width of the pictures; None takes any.
        rank: Of the tensor, 3 or 4.
        dtype: Of the tensor.
    """

    settings: Preprocess
    size: tuple[int, int] | None
    rank: int
    dtype: ir.DataType

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
        width, height = preprocess.resized((self.size[1], self.size[0]), resize)
        return height, width

    @property
    def resizes(self) -> bool:
        """Whether a Resize is needed."""
        return self.settings.resize is not None and (self.size is None or self.target != self.size)

    def affine(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a and b of tensor = a * pixel + b, one a channel in the order as fed."""
        mean, std = (
            np.broadcast_to(preprocess.per_channel(self.settings, name), self.settings.depth)
            for name in ("mean", "std")
        )
        divided = std.astype(np.float64)
        scale: NDArray[np.float64] = np.float64(self.settings.scale) / divided
        return scale, -mean.astype(np.float64) / divided


def write(chain: Chain, value: ir.Value, picture: Picture, readers: Sequence[ir.Node]) -> ir.Value:
    """Write all nodes and return the tensor; the first convolution takes the scale in.

    Args:
        chain: Takes the nodes.
        value: The pictures.
        picture: What to write.
        readers: What reads the tensor now.
    """
    settings = picture.settings
    if picture.rank == 3 and (picture.resizes or settings.crop is not None):
        value = chain.add("Unsqueeze", value, chain.constant("front", [0]))
    if picture.resizes:
        value = _resize(chain, value, picture)
    if settings.crop is not None:
        value = _crop(chain, value, picture)
    if picture.rank == 3 and (picture.resizes or settings.crop is not None):
        value = chain.add("Squeeze", value, chain.constant("front", [0]))
    if settings.layout == "NCHW":
        order = [0, 3, 1, 2] if picture.rank == 4 else [2, 0, 1]
        value = chain.add("Transpose", value, attributes={"perm": order})
    scale, shift = picture.affine()
    conv = _conv(readers, picture)
    flips = settings.channels == "bgr"
    left = _into(chain.editor, conv, scale, shift, flips=flips) if conv is not None else None
    if left is not None:
        scale, shift, flips = np.ones_like(scale), left, False
    if flips:
        axis = -3 if settings.layout == "NCHW" else -1
        order_of = chain.constant("bgr", [2, 1, 0])
        value = chain.add("Gather", value, order_of, attributes={"axis": axis})
    return _arithmetic(chain, value, picture, scale, shift)


def _resize(chain: Chain, value: ir.Value, picture: Picture) -> ir.Value:
    """Resize bytes as Pillow does: antialiased, weights outside of the picture left out."""
    settings = picture.settings
    attributes: dict[str, object] = {"mode": MODES[settings.interpolation], "axes": [1, 2]}
    if settings.interpolation == "nearest":
        attributes |= {"nearest_mode": "round_prefer_ceil"}
    else:
        attributes |= {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
    resize = settings.resize
    if picture.target is not None:
        sizes = chain.constant("size", picture.target)
    else:
        side = float(resize) if isinstance(resize, int) else 0.0
        shape = chain.add("Shape", value, attributes={"start": 1, "end": 3})
        given = chain.cast(shape, ir.DataType.DOUBLE)
        shorter = chain.add("ReduceMin", given, attributes={"keepdims": 0})
        factor = chain.add("Div", chain.constant("side", side, np.float64), shorter)
        rounded = chain.add("Round", chain.add("Mul", given, factor))
        whole = chain.cast(rounded, ir.DataType.INT64)
        sizes = chain.add("Max", whole, chain.constant("shorter", [int(side)]))
    return chain.add("Resize", value, None, None, sizes, attributes=attributes)


def _crop(chain: Chain, value: ir.Value, picture: Picture) -> ir.Value:
    """Cut the centre out, at Pillow's offsets: half a pixel goes to the even side."""
    settings, target = picture.settings, picture.target
    size = preprocess.both(settings.crop or 0)
    axes = chain.constant("axes", [1, 2])
    if target is not None:
        begin = [round((whole - part) / 2) for whole, part in zip(target, size, strict=True)]
        if not any(begin) and target == size:
            return value
        end = [at + part for at, part in zip(begin, size, strict=True)]
        first, last = chain.constant("begin", begin), chain.constant("end", end)
        return chain.add("Slice", value, first, last, axes)
    wanted = chain.constant("crop", size)
    shape = chain.add("Shape", value, attributes={"start": 1, "end": 3})
    spare = chain.cast(chain.add("Sub", shape, wanted), ir.DataType.DOUBLE)
    halves = chain.add("Mul", spare, chain.constant("half", 0.5, np.float64))
    first = chain.cast(chain.add("Round", halves), ir.DataType.INT64)
    cut = chain.add("Slice", value, first, chain.add("Add", first, wanted), axes)
    # A picture that is smaller than the crop must fail here, not go on in another size.
    return chain.add("Reshape", cut, chain.constant("to", [0, *size, settings.depth]))


def _conv(readers: Sequence[ir.Node], picture: Picture) -> FoldableLayer | None:
    """Return the convolution that may take the scale in, if it alone reads the tensor."""
    fits = picture.settings.layout == "NCHW" and picture.rank == 4
    at = foldable(readers[0]) if fits and len(readers) == 1 else None
    if at is None or at.node.op_type != "Conv" or picture.dtype != ir.DataType.FLOAT:
        return None
    return at if at.group == 1 and at.inputs == picture.settings.depth else None


def _into(
    editor: Editor,
    at: FoldableLayer,
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
    left = shift / scale if at.padded else np.zeros_like(shift)
    taken = np.zeros_like(shift) if at.padded else shift
    if x is None or Absorber(editor).before(at, Affine(scale, taken), x) is not None:
        return None
    weights = const_array(at.node.inputs[1])
    if flips and weights is not None:
        turned = editor.constant(f"{at.node.name}_turned", np.ascontiguousarray(weights[:, ::-1]))
        at.node.replace_input_with(1, turned)
    return left[::-1] if flips else left


def _arithmetic(
    chain: Chain,
    value: ir.Value,
    picture: Picture,
    scale: NDArray[np.float64],
    shift: NDArray[np.float64],
) -> ir.Value:
    if picture.dtype == ir.DataType.UINT8 and not shift.any() and (scale == 1).all():
        return value
    shape = (-1, 1, 1) if picture.settings.layout == "NCHW" else (-1,)
    value = chain.cast(value, ir.DataType.FLOAT)
    if (scale != 1).any():
        value = chain.add("Mul", value, chain.constant("scale", scale.reshape(shape), np.float32))
    if shift.any():
        value = chain.add("Add", value, chain.constant("shift", shift.reshape(shape), np.float32))
    if picture.dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        low, high = (0, 255) if picture.dtype == ir.DataType.UINT8 else (-128, 127)
        limits = [chain.constant("limit", edge, np.float32) for edge in (low, high)]
        value = chain.add("Clip", chain.add("Round", value), *limits)
    return value if picture.dtype == ir.DataType.FLOAT else chain.cast(value, picture.dtype)


def only_readers(value: ir.Value) -> list[ir.Node]:
    """Return what reads a value; none of it where that is not all."""
    return [] if value.is_graph_output() else [node for node, _ in value.uses()]
