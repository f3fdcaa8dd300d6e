"""What a piece of a graph is like, whatever its nodes and tensors are called."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortune.core.plugins import codec
from ortune.model.diff.graphs import settings
from ortune.model.graph import edit
from ortune.model.graph.match import label
from ortune.model.graph.spec import shape_of


def pattern(nodes: Sequence[ir.Node], opset: int) -> str:
    """Digest operators, attributes, inner edges, and shapes of constants and of what comes in.

    Sizes of what comes in count where all but the first are known: a convolution takes longer on a
    larger picture.
    """
    made = {
        value: f"{at}.{index}"
        for at, node in enumerate(nodes)
        for index, value in enumerate(node.outputs)
    }
    outer: dict[ir.Value, str] = {}

    def said(value: ir.Value | None) -> str:
        if value is None:
            return "-"
        if value in made:
            return made[value]
        tensor = edit.const_tensor(value)
        if tensor is not None:
            return f"{tensor.dtype.name} {list(tensor.shape.numpy())}"
        return outer.setdefault(value, f"in {len(outer)} {_size(value)}")

    return codec.digest(
        [[label(n), settings(n, opset), [said(value) for value in n.inputs]] for n in nodes]
    )


def _size(value: ir.Value) -> str:
    shape = shape_of(value)
    known = shape is not None and len(shape) > 1 and all(isinstance(d, int) for d in shape[1:])
    return str(list(shape[1:])) if known and shape is not None else "?"
