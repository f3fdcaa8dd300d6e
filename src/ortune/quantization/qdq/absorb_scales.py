"""Moves factors on an activation's channels into the constants of what makes it, exactly."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph import edit
from ortune.model.graph.values import overridable


@dataclass(frozen=True)
class _Part:
    """A constant input whose channels lie along the last axis, or along the first of two."""

    node: ir.Node
    index: int
    first: bool = False


def absorb(
    editor: edit.Editor, value: ir.Value, factor: NDArray[np.float32], readers: Collection[ir.Node]
) -> bool:
    """Multiply a value's last axis by moving the factors upwards, and say whether it was done.

    They go through Relu and LeakyRelu and end in the constants of LayerNormalization, Mul, MatMul
    or Gemm, those of an Add between included. Nothing is changed when that cannot be, above all
    when something beside `readers` reads the value: a residual connection. Factors are positive,
    shape [channels].
    """
    parts = _parts(value, len(factor), readers)
    if parts is None:
        return False
    for part in parts:
        old = part.node.inputs[part.index]
        array = edit.const_array(old)
        assert array is not None and old is not None
        new = array * (factor[:, None] if part.first else factor)
        held = editor.constant(f"{old.name}_smooth", new.astype(np.float32))
        part.node.replace_input_with(part.index, held)
        edit.discard(old)
    return True


def _parts(value: ir.Value | None, width: int, readers: Collection[ir.Node]) -> list[_Part] | None:
    """Return the constants to multiply; None when the factors cannot go up from this value."""
    if (
        value is None
        or value.is_graph_output()
        or any(u.node not in readers for u in value.uses())
    ):
        return None
    node = value.producer()
    if node is None or node.domain or any(output.uses() for output in node.outputs[1:]):
        return None
    if any(reader.graph is not node.graph for reader in readers):
        return None
    match node.op_type:
        case "Relu" | "LeakyRelu":
            return _parts(node.inputs[0], width, {node})
        case "LayerNormalization":
            held = [_Part(node, i) for i, one in enumerate(node.inputs) if i and one is not None]
            return held if all(_size(part) == (width,) for part in held) else None
        case "Mul" | "Add":
            return _of_two(node, width)
        case "MatMul" | "Gemm":
            return _of_product(node, width)
        case _:
            return None


def _of_two(node: ir.Node, width: int) -> list[_Part] | None:
    """A product takes the factors in one operand, a constant if there is one; a sum in both."""
    for index in (0, 1):
        size = _size(_Part(node, index))
        if size is None:
            continue
        if size not in ((), (1,)) and (size[-1] != width or set(size[:-1]) - {1}):
            return None
        held = [_Part(node, index)]
        if node.op_type == "Mul":
            return held
        above = _parts(node.inputs[1 - index], width, {node})
        return None if above is None else held + above
    if node.op_type == "Add" or node.inputs[0] is node.inputs[1]:
        return None
    return _parts(node.inputs[1], width, {node}) or _parts(node.inputs[0], width, {node})


def _of_product(node: ir.Node, width: int) -> list[_Part] | None:
    weight = _Part(node, 1, first=bool(edit.attribute(node, "transB", 0)))
    size = _size(weight)
    if size is None or len(size) != 2 or size[0 if weight.first else 1] != width:
        return None
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return [weight]
    bias = _Part(node, 2)
    size = _size(bias)
    return [weight, bias] if size is not None and (size[-1:] or (1,))[0] in (1, width) else None


def _size(part: _Part) -> tuple[int, ...] | None:
    """Return the shape of a float32 constant, None for anything else."""
    value = part.node.inputs[part.index]
    tensor = edit.const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or overridable(value):
        return None
    return tuple(tensor.shape.numpy())
