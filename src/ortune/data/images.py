"""Images as samples, preprocessed as ``preprocess.toml`` beside them says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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

_PIXEL = 3 * 4
"""Bytes of a pixel as three floats."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"})


def blocks(
    files: Sequence[Path], folder: Path, inputs: Sequence[TensorSpec], note: Note
) -> Iterator[NamedArrays]:
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
        yield NamedArrays(str(path.relative_to(folder)), columns)


def _settings(
    folder: Path, inputs: Sequence[TensorSpec], note: Note
) -> tuple[Preprocess, TensorSpec]:
    given = preprocess.read(folder / SETTINGS)
    name = str(given.get("input", inputs[0].name if len(inputs) == 1 else ""))
    spec = checks.by_name(inputs).get(name)
    if spec is None:
        raise BadData(
            f"images for the input '{name}': the model's are {', '.join(checks.by_name(inputs))}",
            fix=f'name one of them in {folder / SETTINGS}: input = "..."',
        )
    if _folded(spec, given):
        note(f"images: {SETTINGS} is ignored, as '{name}' takes pictures of uint8 as they are")
        given = {"input": name}
    fields = {**preprocess.defaults(spec, given), **given}
    try:
        settings = codec.build(Preprocess, fields)
    except BadSettings as error:
        raise BadData(f"{folder / SETTINGS}: {error.what}", fix=error.fix) from None
    source = SETTINGS if given else f"no {SETTINGS}, so by default"
    note(f"images ({source}): {settings}")
    return settings, spec


def _folded(spec: TensorSpec, given: Mapping[str, Any]) -> bool:
    """Say whether the model does by itself what the settings say: it takes plain pictures."""
    arithmetic = {key: given[key] for key in ("scale", "mean", "std") if key in given}
    plain = {"scale": 1, "mean": 0, "std": 1}
    changed = any(value != plain[key] for key, value in arithmetic.items())
    return spec.dtype == "uint8" and "dtype" not in given and changed


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
    values = preprocess.values(_pixels(path, settings), settings)
    if spec.shape is None or len(spec.shape) != 3:
        values = values[None]
    return _typed(values, settings.dtype)


def _pixels(path: Path, settings: Preprocess) -> NDArray[np.uint8]:
    """Return the pixels [height, width, channels]."""
    try:
        from PIL import Image as PillowImage
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install ortune[images]") from None
    try:
        with PillowImage.open(path) as opened:
            wide, high = opened.size
            if settings.resize is not None:
                wide, high = preprocess.resized(opened.size, settings.resize)
            sizes.demand(_PIXEL * max(wide * high, opened.size[0] * opened.size[1]), str(path))
            image = opened.convert("L" if settings.channels == "gray" else "RGB")
    except (OSError, ValueError, PillowImage.DecompressionBombError) as error:
        raise BadData(
            f"cannot read {path}: {user_function.reason(error)}", fix="remove it, or save it again"
        ) from error
    return preprocess.pixels(image, settings, path.name)


def _typed(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    try:
        wanted = named(dtype)
    except (TypeError, AttributeError):
        raise BadData(f"{SETTINGS}: no dtype '{dtype}'", fix="write float32 or uint8") from None
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return np.clip(np.rint(values), limits.min, limits.max).astype(wanted)
    return values.astype(wanted)
