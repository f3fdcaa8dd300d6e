"""Images as samples, preprocessed as ``preprocess.toml`` beside them says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec, user_function
from ortune.core.preprocess import SETTINGS, Preprocess
from ortune.data import checks, sizes
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import Note
from ortune.data.stream import named

if TYPE_CHECKING:
    from PIL.Image import Image

Picture: TypeAlias = "str | Path | Image | NDArray[np.uint8]"
_PIXEL = 3 * 4
"""Bytes of a pixel as three floats."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"})


def blocks(
    files: Sequence[Path],
    folder: Path,
    inputs: Sequence[TensorSpec],
    note: Note,
    given: Mapping[str, Any] | None = None,
) -> Iterator[NamedArrays]:
    """Yield one block an image; sub-folders of `folder` are classes, labelled 0, 1, ... by name.

    Args:
        given: Keys of the settings; those in the folder without them.

    Raises:
        BadData: Pillow is missing, the settings do not fit, or a file is no image.
    """
    given = preprocess.read(folder / SETTINGS) if given is None else given
    settings, spec = settings_for(given, inputs, note, folder / SETTINGS)
    numbered = classes(files, folder, note)
    for path in files:
        columns = {spec.name: Column.of(tensor(path, settings, spec))}
        if path.parent.name in numbered and path.parent != folder:
            columns["label"] = Column.of(np.array(numbered[path.parent.name]))
        yield NamedArrays(str(path.relative_to(folder)), columns)


def settings_for(
    given: Mapping[str, Any], inputs: Sequence[TensorSpec], note: Note, where: str | Path
) -> tuple[Preprocess, TensorSpec]:
    """Return how pictures become an input, and which; what is not given is read off its shape.

    Args:
        where: The file that the keys are from, for errors.

    Raises:
        BadData: The settings do not fit.
    """
    name = str(given.get("input", inputs[0].name if len(inputs) == 1 else ""))
    spec = checks.by_name(inputs).get(name)
    if spec is None:
        raise BadData(
            f"images for the input '{name}': the model's are {', '.join(checks.by_name(inputs))}",
            fix=f'name one of them in {where}: input = "..."',
        )
    arithmetic = {key: given[key] for key in ("scale", "mean", "std") if key in given}
    plain = {"scale": 1, "mean": 0, "std": 1}
    changed = any(value != plain[key] for key, value in arithmetic.items())
    if spec.dtype == "uint8" and "dtype" not in given and changed:
        note(f"images: {SETTINGS} is ignored, as '{name}' takes pictures of uint8 as they are")
        given = {"input": name}
    fields = {**preprocess.defaults(spec, given), **given}
    try:
        settings = codec.build(Preprocess, fields)
    except BadSettings as error:
        raise BadData(f"{where}: {error.what}", fix=error.fix) from None
    source = SETTINGS if given else f"no {SETTINGS}, so by default"
    note(f"images ({source}): {settings}")
    return settings, spec


def classes(files: Sequence[Path], folder: Path, note: Note) -> dict[str, int]:
    """Number the sub-folders by name; names that are all numbers are the labels themselves."""
    names = sorted({path.parent.name for path in files if path.parent != folder})
    if len(names) < 2:
        return {}
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}
    shown = ", ".join(f"{at} = {name}" for at, name in enumerate(names[:5]))
    note(f"labels from sub-folders: {shown}{', ...' if len(names) > 5 else ''}")
    return {name: at for at, name in enumerate(names)}


def is_picture(value: object) -> bool:
    """Say whether a value may stand for a picture: a path, pixels of uint8, or Pillow's image."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and (value.ndim == 2 or value.shape[2:] in ((1,), (3,)))
    return isinstance(value, (str, Path)) or hasattr(value, "getexif")


def tensor(picture: Picture, settings: Preprocess, spec: TensorSpec) -> NDArray[Any]:
    """Return the tensor of one picture, with a batch dimension of 1 where the input has one.

    Args:
        picture: A file, Pillow's image, or pixels of uint8 [height, width, 3] or [height, width].

    Raises:
        BadData: Pillow is missing, it is no picture, or too small for the crop.
    """
    try:
        from PIL import Image as PillowImage
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install ortune[images]") from None
    name = str(picture) if isinstance(picture, (str, Path)) else "the picture"
    try:
        with ExitStack() as stack:
            if isinstance(picture, (str, Path)):
                opened: Image = stack.enter_context(PillowImage.open(picture))
            elif isinstance(picture, np.ndarray):
                flat = picture[..., 0] if picture.shape[2:] == (1,) else picture
                opened = PillowImage.fromarray(np.ascontiguousarray(flat))
            else:
                opened = picture
            wide, high = opened.size
            if settings.resize is not None:
                wide, high = preprocess.resized(opened.size, settings.resize)
            sizes.demand(_PIXEL * max(wide * high, opened.size[0] * opened.size[1]), name)
            image = opened.convert("L" if settings.channels == "gray" else "RGB")
    except (OSError, ValueError, PillowImage.DecompressionBombError) as error:
        raise BadData(
            f"cannot read {name}: {user_function.reason(error)}", fix="remove it, or save it again"
        ) from error
    values = preprocess.values(preprocess.pixels(image, settings, Path(name).name), settings)
    if spec.shape is None or len(spec.shape) != 3:
        values = values[None]
    try:
        wanted = named(settings.dtype)
    except (TypeError, AttributeError):
        raise BadData(
            f"{SETTINGS}: no dtype '{settings.dtype}'", fix="write float32 or uint8"
        ) from None
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return np.clip(np.rint(values), limits.min, limits.max).astype(wanted)
    return values.astype(wanted)
