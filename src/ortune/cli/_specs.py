"""Inputs and outputs of a model in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.cli import shared
from ortune.core.facts import TensorSpec


def table(kind: str, specs: Sequence[TensorSpec]) -> None:
    """Print names, types and shapes under the heading `kind`."""
    shared.table((kind, "dtype", "shape"), [(one.name, one.dtype, dims(one)) for one in specs])


def dims(spec: TensorSpec) -> str:
    """Write a shape: ``1 x 3 x height x ?``."""
    return sides(spec.shape)


def sides(shape: tuple[int | str | None, ...] | None) -> str:
    """Write a shape, or what is known of one."""
    if shape is None:
        return "any rank"
    if not shape:
        return "scalar"
    return " x ".join("?" if dim is None else str(dim) for dim in shape)
