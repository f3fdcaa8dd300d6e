"""Read ``dims=[batch:1, image.2:height]`` against the inputs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortune.core.errors import BadSettings
from ortune.model.graph.spec import shape_of

Place = tuple[str, int]
"""An input and an axis of it."""


def pairs(texts: Sequence[str], kind: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and behind the last colon of each.

    Raises:
        BadSettings: There is no colon.
    """
    for text in texts:
        before, colon, behind = text.rpartition(":")
        if not colon or not before or not behind:
            raise BadSettings(f"dims: '{text}' names no {kind}", fix=f"write DIMENSION:{kind}")
        yield before.strip(), behind.strip()


def places(model: ir.Model, text: str) -> list[Place]:
    """Return the places that ``NAME`` or ``INPUT.AXIS`` means; a named one all of its name.

    Raises:
        BadSettings: There is no such dimension.
    """
    inputs = {str(v.name): shape_of(v) or () for v in given(model)}
    named = [(n, i) for n, shape in inputs.items() for i, dim in enumerate(shape) if dim == text]
    if named:
        return named
    name, _, axis = text.rpartition(".")
    if name in inputs and axis.isdecimal():
        if int(axis) < len(inputs[name]):
            dim = inputs[name][int(axis)]
            return places(model, dim) if isinstance(dim, str) else [(name, int(axis))]
        raise BadSettings(
            f"dims: input '{name}' has no axis {axis}: its shape is {list(inputs[name])}",
            fix=f"give one from 0 to {len(inputs[name]) - 1}",
        )
    known = dict.fromkeys(d for shape in inputs.values() for d in shape if isinstance(d, str))
    there = f"those there: {', '.join(known)}" if known else "no input has a named one"
    raise BadSettings(
        f"dims: no dimension '{text}'", fix=f"{there}; INPUT.AXIS names any: {_first(inputs)}.0"
    )


def given(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a caller must give."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _first(inputs: dict[str, tuple[int | str | None, ...]]) -> str:
    return next((name for name, shape in inputs.items() if shape), "x")
