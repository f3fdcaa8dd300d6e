"""Images as samples, preprocessed as ``preprocess.toml`` beside them says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core import codec, imports
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.data import checks
from ortune.data.blocks import Block, Column
from ortune.data.checks import Note
from ortune.data.stream import named

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"})
SETTINGS = "preprocess.toml"


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes a tensor: resize, crop, (pixel * scale - mean) / std, layout.

    Attributes:
        input: The input that takes the image; empty for the only one.
        resize: ``[height, width]``, or a number for the shorter side; None keeps the size.
        crop: Of the centre, ``[height, width]`` or a number for both; None keeps all.
        interpolation: Of the resize.
        channels: Order of the values; gray is one channel.
        scale: Factor for the pixels 0 to 255.
        mean: Taken off after scaling; one number, or one a channel in the order of `channels`.
        std: Divided by last; one number, or one a channel.
        layout: Of the tensor.
        dtype: Of the tensor; empty takes the input's.
    """

    input: str = ""
    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box"] = "bilinear"
    channels: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: float = 1 / 255
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dtype: str = ""

    def __str__(self) -> str:
        size = "as they are" if self.resize is None else f"resized to {_times(self.resize)}"
        crop = "" if self.crop is None else f", centre {_square(self.crop)} cropped"
        return (
            f"{size}{crop}, {self.interpolation}, {self.channels}, "
            f"(pixel * {self.scale:.6g} - {_spell(self.mean)}) / {_spell(self.std)}, "
            f"{self.layout} {self.dtype}"
        )


def blocks(
    files: Sequence[Path], folder: Path, inputs: Sequence[TensorSpec], note: Note
) -> Iterator[Block]:
    """Yield one block an image; sub-folders of `folder` are classes, labelled 0, 1, ... by name.

    Raises:
        BadData: Pillow is missing, the settings do not fit, or a file is no image.
    """
    settings, spec = _settings(folder, inputs, note)
    classes = _classes(files, folder, note)
    for path in files:
        columns = {spec.name: Column.of(_tensor(path, settings, spec))}
        if path.parent.name in classes and path.parent != folder:
            columns["label"] = Column.of(np.array(classes[path.parent.name]))
        yield Block(str(path.relative_to(folder)), columns)


def _settings(
    folder: Path, inputs: Sequence[TensorSpec], note: Note
) -> tuple[Preprocess, TensorSpec]:
    given = _read(folder / SETTINGS)
    name = str(given.get("input", inputs[0].name if len(inputs) == 1 else ""))
    spec = checks.by_name(inputs).get(name)
    if spec is None:
        raise BadData(
            f"images for the input '{name}': the model's are {', '.join(checks.by_name(inputs))}",
            fix=f'name one of them in {folder / SETTINGS}: input = "..."',
        )
    fields = {**_defaults(spec, given), **given}
    try:
        settings = codec.build(Preprocess, fields)
    except BadSettings as error:
        raise BadData(f"{folder / SETTINGS}: {error.what}", fix=error.fix) from None
    source = SETTINGS if given else f"no {SETTINGS}, so by default"
    note(f"images ({source}): {settings}")
    return settings, spec


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadData(f"cannot read {path}: {imports.reason(error)}", fix="write TOML") from error


def _defaults(spec: TensorSpec, given: dict[str, Any]) -> dict[str, Any]:
    """Read layout, channels and size off the input's shape; integers keep their pixels."""
    shape = spec.shape if spec.shape is not None and len(spec.shape) in (3, 4) else (None,) * 4
    dims = shape[-3:]
    last = dims[2] in (1, 3) and dims[0] not in (1, 3)
    layout = given.get("layout", "NHWC" if last else "NCHW")
    height, width, depth = dims if layout == "NHWC" else (dims[1], dims[2], dims[0])
    dtype = str(given.get("dtype", spec.dtype))
    found: dict[str, Any] = {"layout": layout, "dtype": dtype, "input": spec.name}
    found["channels"] = "gray" if depth == 1 else "rgb"
    if (
        isinstance(height, int)
        and isinstance(width, int)
        and not {"resize", "crop"} & given.keys()
    ):
        found["resize"] = [height, width]
    if "int" in dtype and not {"mean", "std"} & given.keys():
        found["scale"] = 1.0
    return found


def _classes(files: Sequence[Path], folder: Path, note: Note) -> dict[str, int]:
    """Number the sub-folders by name; names that are all numbers are the labels themselves."""
    names = sorted({path.parent.name for path in files if path.parent != folder})
    if len(names) < 2:
        return {}
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}
    shown = ", ".join(f"{at} = {name}" for at, name in enumerate(names[:5]))
    note(f"labels from sub-folders: {shown}{', ...' if len(names) > 5 else ''}")
    return {name: at for at, name in enumerate(names)}


def _tensor(path: Path, settings: Preprocess, spec: TensorSpec) -> NDArray[Any]:
    pixels = _pixels(path, settings)
    if settings.channels == "bgr":
        pixels = pixels[..., ::-1]
    values = pixels.astype(np.float32) * np.float32(settings.scale)
    mean, std = (_per_channel(settings, name, values.shape[-1]) for name in ("mean", "std"))
    values = (values - mean) / std
    if settings.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    if spec.shape is None or len(spec.shape) != 3:
        values = values[None]
    return _typed(np.ascontiguousarray(values), settings.dtype)


def _per_channel(settings: Preprocess, name: str, channels: int) -> NDArray[np.float32]:
    found = np.asarray(getattr(settings, name), np.float32)
    if found.size not in (1, channels):
        raise BadData(
            f"{SETTINGS}: {name} has {found.size} numbers for {channels} channels",
            fix="give one number, or one a channel",
        )
    return found


def _pixels(path: Path, settings: Preprocess) -> NDArray[np.uint8]:
    """Return the pixels [height, width, channels]."""
    try:
        from PIL import Image as PillowImage
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install ortune[images]") from None
    method = PillowImage.Resampling[settings.interpolation.upper()]
    try:
        with PillowImage.open(path) as opened:
            image = opened.convert("L" if settings.channels == "gray" else "RGB")
    except (OSError, ValueError, PillowImage.DecompressionBombError) as error:
        raise BadData(
            f"cannot read {path}: {imports.reason(error)}", fix="remove it, or save it again"
        ) from error
    if settings.resize is not None:
        image = image.resize(_size(image, settings.resize), method)
    if settings.crop is not None:
        image = _cropped(image, settings.crop, path)
    found = np.asarray(image)
    return found if found.ndim == 3 else found[..., None]


def _size(image: Image, resize: int | tuple[int, int]) -> tuple[int, int]:
    """Return (width, height)."""
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    factor = resize / min(image.size)
    return max(resize, round(image.width * factor)), max(resize, round(image.height * factor))


def _cropped(image: Image, crop: int | tuple[int, int], path: Path) -> Image:
    height, width = crop if isinstance(crop, tuple) else (crop, crop)
    if width > image.width or height > image.height:
        raise BadData(
            f"{path.name} is {image.height}x{image.width}, smaller than crop {height}x{width}",
            fix=f"resize it first: resize in {SETTINGS}",
        )
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _typed(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    try:
        wanted = named(dtype)
    except (TypeError, AttributeError):
        raise BadData(f"{SETTINGS}: no dtype '{dtype}'", fix="write float32 or uint8") from None
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return np.clip(np.rint(values), limits.min, limits.max).astype(wanted)
    return values.astype(wanted)


def _times(size: int | tuple[int, int]) -> str:
    return f"{size} (shorter side)" if isinstance(size, int) else _square(size)


def _square(size: int | tuple[int, int]) -> str:
    return f"{size}x{size}" if isinstance(size, int) else f"{size[0]}x{size[1]}"


def _spell(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(f'{item:g}' for item in value)}]"
    return f"{value:g}"
