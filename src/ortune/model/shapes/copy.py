"""A copy of a model in which shapes are known as far as they can be."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortune.core.errors import BadSettings
from ortune.model.graph import edit
from ortune.model.shapes.infer import infer


def shaped(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[ir.Model, str]:
    """Return a copy without local functions, with all shapes that the ladder finds, and its rung.

    Args:
        model: Left as it is; the copy shares its weights.
        shapes: Input -> shape to take it at, in place of the dimensions that it is declared with.

    Raises:
        BadSettings: There is no such input, or it has another rank or fixed size.
    """
    copy = model.clone()
    edit.inline(copy)
    if shapes:
        inputs = {str(value.name): value for value in copy.graph.inputs}
        for name, wanted in shapes.items():
            _demand(name, wanted, inputs)
        for node in edit.every_node(copy):
            for value in node.outputs:
                value.shape = None
        for name, wanted in shapes.items():
            inputs[name].shape = ir.Shape(wanted)
    return copy, infer(copy)


def _demand(name: str, wanted: tuple[int, ...], inputs: Mapping[str, ir.Value]) -> None:
    if name not in inputs:
        raise BadSettings(f"the model has no input '{name}'", fix=f"use {', '.join(inputs)}")
    declared = inputs[name].shape
    if declared is None:
        return
    pairs = zip(declared, wanted, strict=False)
    clash = any(isinstance(old, int) and old != new for old, new in pairs)
    if clash or len(declared) != len(wanted):
        sides = "x".join(str(dim) if isinstance(dim, int) else "?" for dim in declared)
        raise BadSettings(
            f"input '{name}' does not take the shape {'x'.join(map(str, wanted))}",
            fix=f"it is declared {sides}",
        )
