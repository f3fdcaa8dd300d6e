"""Initial states of recurrent layers that are what the layer takes by itself."""

from __future__ import annotations

import onnx_ir as ir

from ortune.model.graph.edit import attribute, const_tensor, every_node
from ortune.model.graph.match import maker
from ortune.model.graph.values import overridable

_LONGEST = 1 << 20


def drop_zero_states(model: ir.Model) -> int:
    """Leave out zeros given as the initial state of LSTM, GRU and RNN; return how many went.

    The operators start from zeros where no state is given. Zeros are a constant, or the result of
    ConstantOfShape, perhaps moved or widened: with it goes the arithmetic that finds the batch.
    """
    count = 0
    for node in every_node(model):
        if node.domain or node.op_type not in ("LSTM", "GRU", "RNN"):
            continue
        for index in (5, 6):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None and _zeros(value):
                node.replace_input_with(index, None)
                count += 1
    return count


_MOVES = (
    "Expand",
    "Tile",
    "Identity",
    "Cast",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Transpose",
    "Slice",
    "Gather",
)
"""Operators of whose zeros nothing but zeros comes."""


def _zeros(value: ir.Value | None) -> bool:
    node = maker(value, "ConstantOfShape", *_MOVES)
    if node is None:
        tensor = const_tensor(value)
        small = tensor is not None and tensor.size <= _LONGEST and not overridable(value)
        return small and tensor is not None and not tensor.numpy().any()
    if node.op_type != "ConstantOfShape":
        return _zeros(node.inputs[0])
    filled = attribute(node, "value", None)
    return filled is None or not filled.numpy().any()
