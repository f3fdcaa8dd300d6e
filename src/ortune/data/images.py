"""Images as samples, preprocessed as ``preprocess.toml`` beside them says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess, regular_file
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec, user_function
from ortune.core.preprocess import SETTINGS, Preprocess
from ortune.data import checks, sizes
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import Note
from ortune.data.classes import number_classes
from ortune.data.reading import Reading
from ortune.data.stream import parse_dtype

if TYPE_CHECKING:
    from PIL.Image import Image

Picture: TypeAlias = "str | Path | Image | NDArray[np.uint8]"
_PIXEL = 3 * 4
"""Bytes of a pixel as three floats."""
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
"""What pictures may be in Pillow's words, whatever a file is called: it would else try all that it
knows, PostScript by starting Ghostscript."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"})


def read_image_blocks(
    files: Sequence[Path], folder: Path, reading: Reading
) -> Iterator[NamedArrays]:
    """Yield one block an image; sub-folders of `folder` are classes, see `number_classes`.

    Raises:
        BadData: Pillow is missing, the settings do not fit, or a file is no image.
    """
    keys = reading.pictures
    keys = preprocess.read_preprocess_keys(folder / SETTINGS) if keys is None else keys
    settings, spec = settings_for(keys, reading.needed, reading.note, folder / SETTINGS)
    class_numbers = number_classes(files, folder, reading.note, reading.classes)
    for path in files:
        columns = {spec.name: Column.from_array(preprocess_picture(path, settings, spec))}
        if path.parent.name in class_numbers and path.parent != folder:
            columns["label"] = Column.from_array(np.array(class_numbers[path.parent.name]))
        yield NamedArrays(str(path.relative_to(folder)), columns)


def settings_for(
    keys: Mapping[str, Any], inputs: Sequence[TensorSpec], note: Note, where: str | Path
) -> tuple[Preprocess, TensorSpec]:
    """Return how pictures become an input, and which; what is not given is read off its shape.

    Args:
        where: The file that the keys are from, for errors.

    Raises:
        BadData: The settings do not fit.
    """
    name = str(keys.get("input", inputs[0].name if len(inputs) == 1 else ""))
    spec = checks.specs_by_name(inputs).get(name)
    if spec is None:
        raise BadData(
            f"images for the input '{name}': the model's are "
            f"{', '.join(checks.specs_by_name(inputs))}",
            fix=f'name one of them in {where}: input = "..."',
        )
    arithmetic = {key: keys[key] for key in ("scale", "mean", "std") if key in keys}
    plain = {"scale": 1, "mean": 0, "std": 1}
    changed = any(value != plain[key] for key, value in arithmetic.items())
    if spec.dtype == "uint8" and "dtype" not in keys and changed:
        note(f"images: {SETTINGS} is ignored, as '{name}' takes pictures of uint8 as they are")
        keys = {"input": name}
    fields = {**preprocess.derive_defaults(spec, keys), **keys}
    try:
        settings = codec.build_dataclass(Preprocess, fields)
    except BadSettings as error:
        raise BadData(f"{where}: {error.what}", fix=error.fix) from None
    source = SETTINGS if keys else f"no {SETTINGS}, so by default"
    note(f"images ({source}): {settings}")
    return settings, spec


def is_picture(value: object) -> bool:
    """Say whether a value may stand for a picture: a path, pixels of uint8, or Pillow's image."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and (value.ndim == 2 or value.shape[2:] in ((1,), (3,)))
    return isinstance(value, (str, Path)) or hasattr(value, "getexif")


def preprocess_picture(picture: Picture, settings: Preprocess, spec: TensorSpec) -> NDArray[Any]:
    """Return the tensor of one picture, with a batch dimension of 1 where the input has one.

    Args:
        picture: A file, Pillow's image, or pixels of uint8 [height, width, 3] or [height, width].

    Raises:
        BadData: Pillow is missing, it is no picture, or too small for the crop.
    """
    try:
        from PIL import Image as PillowImage
        from PIL import UnidentifiedImageError
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install pillow") from None
    name = str(picture) if isinstance(picture, (str, Path)) else "the picture"
    try:
        with ExitStack() as stack:
            if isinstance(picture, (str, Path)):
                file = stack.enter_context(regular_file.open_regular(picture))
                opened: Image = stack.enter_context(PillowImage.open(file, formats=FORMATS))
            elif isinstance(picture, np.ndarray):
                flat = picture[..., 0] if picture.shape[2:] == (1,) else picture
                opened = PillowImage.fromarray(np.ascontiguousarray(flat))
            else:
                opened = picture
            wide, high = opened.size
            if settings.resize is not None:
                wide, high = preprocess.compute_resized_size(opened.size, settings.resize)
            sizes.require_memory(_PIXEL * max(wide * high, opened.size[0] * opened.size[1]), name)
            image = opened.convert("L" if settings.channels == "gray" else "RGB")
    except UnidentifiedImageError:
        raise BadData(
            f"cannot read {name}: it is no picture of {', '.join(FORMATS)}",
            fix="remove it, or save it as one of them",
        ) from None
    except (OSError, ValueError, PillowImage.DecompressionBombError) as error:
        raise BadData(
            f"cannot read {name}: {user_function.describe_error(error)}",
            fix="remove it, or save it again",
        ) from error
    cropped = preprocess.resize_and_crop(image, settings, Path(name).name)
    values = preprocess.normalize_pixels(cropped, settings)
    if spec.shape is None or len(spec.shape) != 3:
        values = values[None]
    try:
        dtype = parse_dtype(settings.dtype)
    except (TypeError, AttributeError):
        raise BadData(
            f"{SETTINGS}: no dtype '{settings.dtype}'", fix="write float32 or uint8"
        ) from None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)
