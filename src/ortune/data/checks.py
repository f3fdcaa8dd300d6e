"""Samples against the model's inputs: names, rank, shape, dtype, finite values."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData, suggest_names
from ortune.core.facts import TensorSpec
from ortune.data.stream import parse_dtype

Note = Callable[[str], None]
TEXT = frozenset({"object", "str", "string", "str_"})
"""How the dtype of a text input may be named."""


def check_tensor_inputs(inputs: Sequence[TensorSpec]) -> None:
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


_NOT_A_BATCH = re.compile(r"seq|len|time|frame|token|height|width|point|step", re.IGNORECASE)


def is_batch(dim: int | str | None) -> bool:
    """Say whether a first dimension can be a batch: names such as ``seq_len`` say it is none."""
    named = isinstance(dim, str) and "batch" not in dim.lower()
    return not (named and _NOT_A_BATCH.search(str(dim)))


LABEL, GROUP = "label", "group"
"""Names of arrays that samples may have beside those of the inputs."""
IDS, MASK, PLACES = "input_ids", "attention_mask", "position_ids"
"""Inputs of a model of texts, by their names in transformers."""


def check_input_names(
    where: str,
    names: Collection[str],
    inputs: Sequence[TensorSpec],
    optional: Collection[str] = (),
) -> None:
    """Check that exactly the model's inputs are there; `optional` ones may be left out.

    Raises:
        BadData: One is unknown or missing.
    """
    input_names = [spec.name for spec in inputs]
    for name in names:
        if name not in input_names:
            fix = suggest_names(name, [*input_names, LABEL, GROUP])
            raise BadData(f"{where}: the model has no input '{name}'", fix=fix)
    for spec in inputs:
        if spec.name not in names and spec.name not in optional:
            raise BadData(
                f"{where}: input '{spec.name}' is missing",
                fix=f"add an array '{spec.name}' of {spec.dtype} {format_shape(spec.shape)}",
            )


def check_shape(where: str, actual: tuple[int, ...], spec: TensorSpec, *, batch: bool) -> None:
    """Check rank and fixed dimensions; with `batch` the first dimension is checked elsewhere.

    Raises:
        BadData: They differ.
    """
    if spec.shape is None:
        return
    if len(actual) != len(spec.shape):
        raise BadData(
            f"{where}: input '{spec.name}' has the wrong rank: Got {len(actual)} "
            f"{format_shape(actual)}, expected {len(spec.shape)} {format_shape(spec.shape)}",
            fix="add or drop dimensions; the batch dimension comes first",
        )
    for axis, (have, want) in enumerate(zip(actual, spec.shape, strict=True)):
        if isinstance(want, int) and have != want and not (batch and axis == 0):
            raise BadData(
                f"{where}: input '{spec.name}' has the wrong shape in dimension {axis}: "
                f"Got {format_shape(actual)}, expected {format_shape(spec.shape)}",
                fix="give samples of the shape that the model was exported with",
            )


def check_dtype(where: str, actual: np.dtype[Any], spec: TensorSpec) -> None:
    """Check that values of this dtype are, or become without loss of meaning, the input's.

    Raises:
        BadData: They do not.
    """
    if not _is_same_dtype(actual, spec) and not _can_widen(actual, spec):
        raise BadData(
            f"{where}: input '{spec.name}' has the wrong dtype: "
            f"Got {actual.name}, expected {spec.dtype}",
            fix=f"save it as {spec.dtype}",
        )


def cast_to_input(where: str, array: NDArray[Any], spec: TensorSpec, note: Note) -> NDArray[Any]:
    """Return finite values in the input's dtype and in native byte order.

    Raises:
        BadData: There is NaN or infinity, in the samples or after the conversion.
    """
    values = array
    if spec.dtype not in TEXT:
        dtype = parse_dtype(spec.dtype)
        if array.dtype.kind == "V" and array.dtype.isbuiltin != 2:
            values = array.view(dtype)
        elif array.dtype != dtype:
            if array.dtype.name != dtype.name:
                note(f"input '{spec.name}': {array.dtype.name} is read as {dtype.name}")
            with np.errstate(over="ignore"):
                values = array.astype(dtype)
        check_finite(where, values, spec.name)
    return values


def check_finite(where: str, array: NDArray[Any], name: str) -> None:
    """Check for NaN and infinity, else raise BadData."""
    if array.dtype.kind in "iubUSO":
        return
    values = array if array.dtype.kind in "fc" else array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise BadData(
            f"{where}: input '{name}' holds {values.reshape(-1)[bad[0]]} "
            f"(not finite: {len(bad)} of {wording.format_count(values.size, 'value')})",
            fix="give samples without NaN and infinity",
        )


def format_shape(dims: Sequence[int | str | None] | None) -> str:
    """Write a shape as ``[batch, 3, ?, 224]``."""
    if dims is None:
        return "of any shape"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def as_array(value: Any, where: str, spec: TensorSpec | None) -> NDArray[Any]:
    """Return an array as it is, else a number or lists in the input's dtype, where they fit it.

    Raises:
        BadData: The lists are ragged.
    """
    if hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        array = np.array(value)
    except ValueError:
        name = spec.name if spec else "label"
        raise BadData(
            f"{where}: the lists of '{name}' have different lengths",
            fix="give lists of one length in every dimension",
        ) from None
    if spec is None or spec.dtype in TEXT:
        return array
    dtype = parse_dtype(spec.dtype)
    to_float = dtype.kind == "f" or dtype.isbuiltin == 2
    if array.size == 0 or (to_float and array.dtype.kind in "iuf"):
        return array.astype(dtype)
    if dtype.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
            return array.astype(dtype)
    return array


def specs_by_name(inputs: Sequence[TensorSpec]) -> Mapping[str, TensorSpec]:
    """Return the specs by input name."""
    return {spec.name: spec for spec in inputs}


def _is_same_dtype(actual: np.dtype[Any], spec: TensorSpec) -> bool:
    if spec.dtype in TEXT:
        return actual.kind in "US"
    expected = parse_dtype(spec.dtype)
    # .npy files have no name for bfloat16 and its like: they come back as raw bytes.
    raw = expected.isbuiltin == 2 and actual.kind == "V" and actual.itemsize == expected.itemsize
    return raw if actual.isbuiltin != 2 and actual.kind == "V" else actual.name == expected.name


def _can_widen(actual: np.dtype[Any], spec: TensorSpec) -> bool:
    if spec.dtype in TEXT or actual.isbuiltin == 2:
        return False
    expected = parse_dtype(spec.dtype)
    if actual.kind in "iu" and expected.kind in "iu":
        return np.can_cast(actual, expected, "safe")
    return (actual.name, expected.name) == ("float64", "float32")
