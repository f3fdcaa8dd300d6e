"""How a picture becomes a tensor: the settings, their file, and the arithmetic with Pillow."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.plugins import stored, user_function
from ortune.core.plugins.bounds import ANY, Bounds

if TYPE_CHECKING:
    from PIL.Image import Image

SETTINGS = "preprocess.toml"

_LARGEST = 1 << 16
"""Bytes of a settings file; ours have a few hundred."""
_SIDE = stored.integer(1, 16384)
_SIDES = stored.either(_SIDE, stored.items(_SIDE, 2))
_FACTOR = stored.number(-1e9, 1e9)
_FACTORS = stored.either(_FACTOR, stored.items(_FACTOR, 3))
_SPREAD = stored.number(1e-9, 1e9)
_SPREADS = stored.either(_SPREAD, stored.items(_SPREAD, 3))
_DTYPES = stored.word("", "float32", "float16", "float64", "uint8", "int8", "int32", "int64")

Size: TypeAlias = int | tuple[int, int]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos", "box"]


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes a tensor: resize, crop, (pixel * scale - mean) / std, layout."""

    # The input that takes the image; empty for the only one.
    input: Annotated[str, stored.NAME] = ""
    # ``[height, width]``, or a number for the shorter side; None keeps the size.
    resize: Annotated[Size | None, Bounds(1, 65535), _SIDES] = None
    # Of the centre, ``[height, width]`` or a number for both; None keeps all.
    crop: Annotated[Size | None, Bounds(1, 65535), _SIDES] = None
    interpolation: Interpolation = "bilinear"  # of the resize
    channels: Literal["rgb", "bgr", "gray"] = "rgb"  # order of the values; gray is one channel
    scale: Annotated[float, ANY, _FACTOR] = 1 / 255  # factor for the pixels 0 to 255
    # Taken off after scaling; one number, or one a channel in the order of `channels`.
    mean: Annotated[float | tuple[float, ...], ANY, _FACTORS] = 0.0
    # Divided by last; one number, or one a channel.
    std: Annotated[float | tuple[float, ...], ANY, _SPREADS] = 1.0
    layout: Literal["NCHW", "NHWC"] = "NCHW"  # of the tensor
    dtype: Annotated[str, _DTYPES] = ""  # of the tensor; empty takes the input's

    def __str__(self) -> str:
        size = "as they are" if self.resize is None else f"resized to {_format_size(self.resize)}"
        if isinstance(self.resize, int):
            size = f"resized to {self.resize} (shorter side)"
        crop = "" if self.crop is None else f", centre {_format_size(self.crop)} cropped"
        return (
            f"{size}{crop}, {self.interpolation}, {self.channels}, "
            f"(pixel * {self.scale:.6g} - {_format_factor(self.mean)}) / "
            f"{_format_factor(self.std)}, "
            f"{self.layout} {self.dtype}"
        )

    @property
    def depth(self) -> int:
        """Channels of the picture."""
        return 1 if self.channels == "gray" else 3


def read_preprocess_keys(path: Path) -> dict[str, Any]:
    """Return the keys of a settings file; none where there is no such file.

    Raises:
        BadData: It cannot be read.
    """
    try:
        return tomllib.loads(regular_file.read_text(path, _LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(
            f"cannot read {path}: {user_function.describe_error(error)}", fix="write TOML"
        ) from error


def derive_defaults(spec: TensorSpec, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Read layout, channels and size off the input's shape; integers keep their pixels.

    Args:
        explicit: Keys that are written out.
    """
    shape = spec.shape if spec.shape is not None and len(spec.shape) in (3, 4) else (None,) * 4
    dims = shape[-3:]
    last = dims[2] in (1, 3) and dims[0] not in (1, 3)
    layout = explicit.get("layout", "NHWC" if last else "NCHW")
    height, width, depth = dims if layout == "NHWC" else (dims[1], dims[2], dims[0])
    dtype = str(explicit.get("dtype", spec.dtype))
    derived: dict[str, Any] = {"layout": layout, "dtype": dtype, "input": spec.name}
    derived["channels"] = "gray" if depth == 1 else "rgb"
    if (
        isinstance(height, int)
        and isinstance(width, int)
        and not {"resize", "crop"} & explicit.keys()
    ):
        derived["resize"] = [height, width]
    if "int" in dtype and not {"mean", "std"} & explicit.keys():
        derived["scale"] = 1.0
    return derived


def resize_and_crop(image: Image, settings: Preprocess, name: str) -> NDArray[np.uint8]:
    """Resize and crop a picture: [height, width, channels] in the order of the picture.

    Args:
        image: RGB, or one channel for gray.
        name: Of the picture, for errors.

    Raises:
        BadData: The picture is smaller than the crop.
    """
    from PIL import Image as PillowImage

    method = PillowImage.Resampling[settings.interpolation.upper()]
    if settings.resize is not None:
        image = image.resize(compute_resized_size(image.size, settings.resize), method)
    if settings.crop is not None:
        height, width = make_pair(settings.crop)
        if width > image.width or height > image.height:
            raise BadData(
                f"{name} is {image.height}x{image.width}, smaller than crop {height}x{width}",
                fix=f"resize it first: resize in {SETTINGS}",
            )
        x_start, y_start = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((x_start, y_start, x_start + width, y_start + height))
    array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]


def normalize_pixels(pixels: NDArray[np.uint8], settings: Preprocess) -> NDArray[np.float32]:
    """Turn pixels [height, width, channels] into the tensor of one picture, in its layout.

    Raises:
        BadData: `mean` or `std` have another number of channels.
    """
    if settings.channels == "bgr":
        pixels = pixels[..., ::-1]
    tensor = pixels.astype(np.float32) * np.float32(settings.scale)
    mean, std = (per_channel(settings, name) for name in ("mean", "std"))
    tensor = (tensor - mean) / std
    return np.ascontiguousarray(tensor.transpose(2, 0, 1) if settings.layout == "NCHW" else tensor)


def per_channel(settings: Preprocess, name: str) -> NDArray[np.float32]:
    """Return `mean` or `std`: one number, or one a channel.

    Raises:
        BadData: There is another number of them.
    """
    factors = np.asarray(getattr(settings, name), np.float32)
    if factors.size not in (1, settings.depth):
        raise BadData(
            f"{SETTINGS}: {name} is of length {factors.size}, channels: {settings.depth}",
            fix="give one number, or one a channel",
        )
    return factors


def compute_resized_size(size: tuple[int, int], resize: Size) -> tuple[int, int]:
    """Return (width, height) of a picture of `size` (width, height) after the resize."""
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    width, height = size
    factor = resize / min(size)
    return max(resize, round(width * factor)), max(resize, round(height * factor))


def make_pair(size: Size) -> tuple[int, int]:
    """Return (height, width) of a crop."""
    return size if isinstance(size, tuple) else (size, size)


def _format_size(size: Size) -> str:
    height, width = make_pair(size)
    return f"{height}x{width}"


def _format_factor(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(f'{item:g}' for item in value)}]"
    return f"{value:g}"
