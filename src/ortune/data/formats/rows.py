"""Rows of tables as samples: columns named as the inputs, label and group beside them."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.preprocess import SETTINGS
from ortune.data import checks, images
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import Note

BESIDE = ("label", "group")
Pictures: TypeAlias = Callable[[Any, str], NDArray[Any]]
"""From a picture and where it is from to the tensor of its input."""


def wanted(
    there: Collection[str],
    inputs: Sequence[TensorSpec],
    note: Note,
    where: str,
    spared: Collection[str] = (),
) -> list[str]:
    """Return the columns that are read: the inputs, label and group; others are noted.

    Args:
        spared: Inputs that may be left out.

    Raises:
        BadData: An input is missing.
    """
    known = checks.by_name(inputs)
    found = [name for name in there if name in known or name in BESIDE]
    demanded = [spec for spec in inputs if spec.name in there or spec.name not in spared]
    checks.names(where, [name for name in found if name in known], demanded)
    if others := [str(name) for name in there if name not in found]:
        note(f"{where}: columns that are no inputs are not read: {', '.join(others[:8])}")
    return found


def pictures(
    folder: Path,
    given: Mapping[str, Any] | None,
    inputs: Sequence[TensorSpec],
    note: Note,
) -> Pictures:
    """Return how pictures in a table become tensors, by ``preprocess.toml`` in a folder.

    Nothing is read before the first picture is met.
    """
    kept: list[Any] = []

    def tensor(picture: Any, where: str) -> NDArray[Any]:
        if not kept:
            keys = preprocess.read(folder / SETTINGS) if given is None else given
            kept.append(images.settings_for(keys, inputs, note, folder / SETTINGS))
        settings, spec = kept[0]
        return images.tensor(_opened(picture, where), settings, spec)

    return tensor


def block(
    row: Mapping[str, Any], where: str, inputs: Sequence[TensorSpec], tensor: Pictures
) -> NamedArrays:
    """Return one row as a sample; where values lack the batch dimension, they get one of 1.

    Args:
        row: Column name -> a number, text, nested lists, an array or a picture.
        tensor: Of pictures.

    Raises:
        BadData: A value is missing or no array.
    """
    known, columns = checks.by_name(inputs), {}
    for name, value in row.items():
        spec = known.get(name)
        if value is None:
            raise BadData(f"{where}: column '{name}' is empty", fix="leave such rows out")
        if spec is not None and _is_picture(value):
            columns[name] = Column.of(tensor(value, where))
            continue
        array = checks.as_array(value, where, spec)
        rank = array.ndim + 1 if spec is None or spec.shape is None else len(spec.shape)
        batched = name != "group" and array.ndim + 1 == rank
        columns[name] = Column.of(array[None] if batched else array)
    return NamedArrays(where, columns)


def plain(value: Any) -> Any:
    """Return what an Arrow scalar holds: of a tensor an array, else as Python has it."""
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    return value.as_py()


def _is_picture(value: Any) -> bool:
    return hasattr(value, "getexif") or (isinstance(value, Mapping) and "bytes" in value)


def _opened(value: Any, where: str) -> Any:
    """Return a picture; of one that only names a file nothing is opened.

    Raises:
        BadData: It has no bytes of its own, or they are no picture.
    """
    if not isinstance(value, Mapping):
        return value
    try:
        from PIL import Image
    except ImportError:
        raise BadData("reading images needs Pillow", fix="pip install ortune[images]") from None
    if not isinstance(value["bytes"], bytes):
        raise BadData(
            f"{where}: a picture that lies in another file", fix="put its bytes into the table"
        )
    try:
        return Image.open(io.BytesIO(value["bytes"]))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"{where}: no picture: {error}", fix="leave the row out") from error
