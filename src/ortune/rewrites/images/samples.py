"""Samples across the folding of preprocessing: pictures made back from tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess
from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.core.step import Bridge
from ortune.rewrites.images.preprocessing import Picture

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
        """Yield the pictures of one sample."""
        tensor = old[self._name]
        several = tensor.ndim == 4
        made = [self._back(one) for one in (tensor if several else tensor[None])]
        yield {**old, self._name: np.stack(made) if several else made[0]}

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Preprocess pictures as the house does.

        Raises:
            BadData: Pillow is missing.
        """
        pictures = new[self._name]
        several = pictures.ndim == 4
        made = [self._there(one) for one in (pictures if several else pictures[None])]
        values = (np.stack(made) if several else made[0]).astype(self._dtype)
        return [{**new, self._name: values}]

    def _there(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        settings = self._picture.settings
        if settings.resize is not None or settings.crop is not None:
            try:
                from PIL import Image
            except ImportError:
                raise BadData(
                    "comparing resized pictures needs Pillow", fix="pip install ortune[images]"
                ) from None
            image = Image.fromarray(picture[..., 0] if settings.depth == 1 else picture)
            picture = preprocess.pixels(image, settings, "a sample")
        return preprocess.values(picture, settings)

    def _back(self, tensor: NDArray[Any]) -> NDArray[np.uint8]:
        settings = self._picture.settings
        values = np.asarray(tensor, np.float64)
        if settings.layout == "NCHW":
            values = values.transpose(1, 2, 0)
        scale, shift = self._picture.affine()
        made: NDArray[np.uint8] = np.clip(np.rint((values - shift) / scale), 0, 255).astype("u1")
        if settings.channels == "bgr":
            made = made[..., ::-1]
        if settings.crop is not None:
            made = _surrounded(made, self._before_crop(made.shape))
        size = self._picture.size
        return np.ascontiguousarray(made if size is None else _repeated(made, size))

    def _before_crop(self, shape: tuple[int, ...]) -> tuple[int, int]:
        target, resize = self._picture.target, self._picture.settings.resize
        if target is not None:
            return target
        side = resize if isinstance(resize, int) else 0
        return max(side, shape[0]), max(side, shape[1])


def _surrounded(values: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Give a picture an edge so that the crop of `size` finds it again."""
    spare = [max(0, whole - part) for whole, part in zip(size, values.shape, strict=False)]
    begin = [round(one / 2) for one in spare]
    pads = [(at, one - at) for at, one in zip(begin, spare, strict=True)]
    return np.pad(values, [*pads, (0, 0)], mode="edge")


def _repeated(values: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    height, width = size
    rows, columns = (
        np.arange(wanted) * have // wanted
        for wanted, have in ((height, values.shape[0]), (width, values.shape[1]))
    )
    found: NDArray[np.uint8] = values[rows][:, columns]
    return found
