"""Samples against the model's inputs: names, rank, shape, dtype, finite values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data.stream import named

Note = Callable[[str], None]
TEXT = frozenset({"object", "str", "string", "str_"})
"""How the dtype of a text input may be named."""


def tensors(inputs: Sequence[TensorSpec]) -> None:
    """Check that every input is a tensor of a known type.

    Raises:
        BadData: One is a sequence, optional or sparse.
    """
    for spec in inputs:
        if not spec.dtype or "(" in spec.dtype:
            raise BadData(
                f"input '{spec.name}' is {spec.dtype or 'untyped'}: only tensors can be fed",
                fix="export the model with tensor inputs",
            )


def names(
    where: str, found: Collection[str], inputs: Sequence[TensorSpec], spared: Collection[str] = ()
) -> None:
    """Check that exactly the model's inputs are there; `spared` ones may be left out.

    Raises:
        BadData: One is unknown or missing.
    """
    known = [spec.name for spec in inputs]
    for name in found:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            raise BadData(
                f"{where}: the model has no input '{name}'{hint}",
                fix=f"its inputs are: {', '.join(known)}; beside them: label, group",
            )
    for spec in inputs:
        if spec.name not in found and spec.name not in spared:
            raise BadData(
                f"{where}: input '{spec.name}' is missing",
                fix=f"add an array '{spec.name}' of {spec.dtype} {spell(spec.shape)}",
            )


def shape(where: str, got: tuple[int, ...], spec: TensorSpec, *, batch: bool) -> None:
    """Check rank and fixed dimensions; with `batch` the first dimension is checked elsewhere.

    Raises:
        BadData: They differ.
    """
    if spec.shape is None:
        return
    if len(got) != len(spec.shape):
        raise BadData(
            f"{where}: input '{spec.name}' has the wrong rank: Got {len(got)} {spell(got)}, "
            f"expected {len(spec.shape)} {spell(spec.shape)}",
            fix="add or drop dimensions; the batch dimension comes first",
        )
    for axis, (have, want) in enumerate(zip(got, spec.shape, strict=True)):
        if isinstance(want, int) and have != want and not (batch and axis == 0):
            raise BadData(
                f"{where}: input '{spec.name}' has the wrong shape in dimension {axis}: "
                f"Got {spell(got)}, expected {spell(spec.shape)}",
                fix="give samples of the shape that the model was exported with",
            )


def dtype(where: str, got: np.dtype[Any], spec: TensorSpec) -> None:
    """Check that values of this dtype are, or become without loss of meaning, the input's.

    Raises:
        BadData: They do not.
    """
    if not _same(got, spec) and not _widens(got, spec):
        raise BadData(
            f"{where}: input '{spec.name}' has the wrong dtype: "
            f"Got {got.name}, expected {spec.dtype}",
            fix=f"save it as {spec.dtype}",
        )


def cast(where: str, array: NDArray[Any], spec: TensorSpec, note: Note) -> NDArray[Any]:
    """Return finite values in the input's dtype and in native byte order.

    Raises:
        BadData: There is NaN or infinity, in the samples or after the conversion.
    """
    made = array
    if spec.dtype not in TEXT:
        wanted = named(spec.dtype)
        if array.dtype.kind == "V" and array.dtype.isbuiltin != 2:
            made = array.view(wanted)
        elif array.dtype != wanted:
            if array.dtype.name != wanted.name:
                note(f"input '{spec.name}': {array.dtype.name} is read as {wanted.name}")
            with np.errstate(over="ignore"):
                made = array.astype(wanted)
        finite(where, made, spec.name)
    return made


def finite(where: str, array: NDArray[Any], name: str) -> None:
    """Check for NaN and infinity, else raise BadData."""
    if array.dtype.kind in "iubUSO":
        return
    values = array if array.dtype.kind in "fc" else array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise BadData(
            f"{where}: input '{name}' holds {values.reshape(-1)[bad[0]]} "
            f"(not finite: {len(bad)} of {wording.count(values.size, 'value')})",
            fix="give samples without NaN and infinity",
        )


def spell(dims: Sequence[int | str | None] | None) -> str:
    """Write a shape as ``[batch, 3, ?, 224]``."""
    if dims is None:
        return "of any shape"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def listed(value: Any, where: str, spec: TensorSpec | None) -> NDArray[Any]:
    """Turn a number or nested lists into an array of the input's dtype, where they fit it.

    Raises:
        BadData: The lists are ragged.
    """
    try:
        found = np.array(value)
    except ValueError:
        name = spec.name if spec else "label"
        raise BadData(
            f"{where}: the lists of '{name}' have different lengths",
            fix="give lists of one length in every dimension",
        ) from None
    if spec is None or spec.dtype in TEXT:
        return found
    wanted = named(spec.dtype)
    to_float = wanted.kind == "f" or wanted.isbuiltin == 2
    if found.size == 0 or (to_float and found.dtype.kind in "iuf"):
        return found.astype(wanted)
    if wanted.kind in "iu" and found.dtype.kind in "iu":
        limits = np.iinfo(wanted)
        if limits.min <= int(found.min()) and int(found.max()) <= limits.max:
            return found.astype(wanted)
    return found


def as_array(value: Any, where: str, spec: TensorSpec | None) -> NDArray[Any]:
    """Return an array as it is, anything else as by `listed`."""
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return listed(value, where, spec)


def by_name(inputs: Sequence[TensorSpec]) -> Mapping[str, TensorSpec]:
    """Return the specs by input name."""
    return {spec.name: spec for spec in inputs}


def _same(got: np.dtype[Any], spec: TensorSpec) -> bool:
    if spec.dtype in TEXT:
        return got.kind in "US"
    wanted = named(spec.dtype)
    # .npy files have no name for bfloat16 and its like: they come back as raw bytes.
    raw = wanted.isbuiltin == 2 and got.kind == "V" and got.itemsize == wanted.itemsize
    return raw if got.isbuiltin != 2 and got.kind == "V" else got.name == wanted.name


def _widens(got: np.dtype[Any], spec: TensorSpec) -> bool:
    if spec.dtype in TEXT or got.isbuiltin == 2:
        return False
    wanted = named(spec.dtype)
    if got.kind in "iu" and wanted.kind in "iu":
        return np.can_cast(got, wanted, "safe")
    return (got.name, wanted.name) == ("float64", "float32")
