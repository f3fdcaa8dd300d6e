"""What of a model's inputs and outputs the protocol can carry, and how texts go through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadModel
from ortune.core.facts import TensorSpec
from ortune.protocol.datatypes import datatype
from ortune.protocol.status import Refused


def carried(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the outputs that the protocol can carry: arrays of its datatypes.

    Args:
        name: Of the model.

    Raises:
        BadModel: An input is none of these, or no output is.
    """
    lost = [spec for spec in inputs if not _is_carried(spec)]
    kept = tuple(spec for spec in outputs if _is_carried(spec))
    if lost or not kept:
        what = f"input '{lost[0].name}' is {lost[0].dtype}" if lost else "no output is an array"
        raise BadModel(
            f"{name} cannot be served: {what}",
            fix="the Open Inference Protocol carries arrays of plain numbers and texts alone",
        )
    return kept


def _is_carried(spec: TensorSpec) -> bool:
    try:
        datatype(spec.dtype)
    except Refused:
        return False
    return True


def ranked(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return what is told of inputs or outputs: one free dimension where the rank is not known."""
    return [replace(one, shape=(None,)) if one.shape is None else one for one in specs]


def texts(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of ``str``.

    Raises:
        Refused: Bytes are no UTF-8, which is what ONNX' texts are.
    """
    made = np.empty(array.shape, object)
    try:
        made.ravel()[:] = [
            one.decode() if isinstance(one, bytes) else one for one in array.ravel()
        ]
    except UnicodeDecodeError as error:
        raise Refused(f"input '{name}' holds bytes that are no UTF-8: {error.reason}") from None
    return made
