"""The state before the first step: what the sample gives, or zeros."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.data import batches, checks, sizes
from ortune.data.sequences.pairs import StatePair
from ortune.data.stream import named

_LENGTH = re.compile(r"past|seq|len|time|cache", re.IGNORECASE)


def length_axis(spec: TensorSpec, pair: StatePair) -> int | None:
    """Return the axis along which a state gets longer with every step, None when none does."""
    free = [
        axis
        for axis, dim in enumerate(spec.shape or ())
        if axis and not isinstance(dim, int) and "batch" not in str(dim).lower()
    ]
    called = [axis for axis in free if _LENGTH.search(str((spec.shape or ())[axis]))]
    if called:
        return called[0]
    return free[-1] if pair.grows and free else None


def zeros(
    spec: TensorSpec,
    pair: StatePair,
    step: Tensors,
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
) -> NDArray[np.generic]:
    """Return the zeros that a state begins with.

    A growing state has no length at first. Other dynamic dimensions have the size of the fed
    inputs' dimension of that name, or of their batch.

    Raises:
        BadData: A dimension is not known, or a given shape does not fit.
    """
    shape = shapes.get(spec.name)
    if shape is not None:
        checks.shape("--shape", shape, spec, batch=False)
    else:
        if spec.shape is None:
            raise _unknown(spec, "its rank")
        bound = {
            dim: size
            for one in inputs
            if one.name in step and one.shape and len(one.shape) == step[one.name].ndim
            for dim, size in zip(one.shape, step[one.name].shape, strict=True)
            if isinstance(dim, str)
        }
        grown, rows = length_axis(spec, pair), batch(step, inputs)
        free = [axis for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)]
        others = [axis for axis in free if axis != grown]
        found: list[int] = []
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, int):
                found.append(dim)
            elif dim in bound:
                found.append(bound[dim])
            elif axis == grown:
                found.append(0)
            elif axis == 0 or "batch" in str(dim).lower() or others == [axis]:
                found.append(rows)
            else:
                raise _unknown(spec, f"dimension {axis}")
        shape = tuple(found)
    dtype = np.dtype("U1") if spec.dtype in checks.TEXT else named(spec.dtype)
    sizes.demand(sizes.array_bytes(shape, dtype), f"the state '{spec.name}'")
    return np.zeros(shape, dtype)


def batch(step: Tensors, inputs: Sequence[TensorSpec]) -> int:
    """Return the rows of the fed inputs."""
    fed = [one for one in inputs if one.name in step and step[one.name].ndim and one.shape]
    rows = [step[one.name].shape[0] for one in fed if one.shape and batches.is_batch(one.shape[0])]
    return rows[0] if rows else 1


def _unknown(spec: TensorSpec, what: str) -> BadData:
    return BadData(
        f"state '{spec.name}' {checks.spell(spec.shape)} begins with zeros, and the size of "
        f"{what} is not known",
        fix=f"give it: --shape {spec.name}:2x1x128, or the state at the first step as a sample",
    )
