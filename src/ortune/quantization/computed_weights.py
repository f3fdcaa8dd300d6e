"""Weights that the graph puts together from constants before a layer reads them.

Exporters write the gates of an LSTM in PyTorch's order and turn them with Slice and Concat, in
bodies too; `simplify` leaves that alone where every branch would store the result once more.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph import edit
from ortune.model.graph.evaluate import evaluate

PUTS_TOGETHER = frozenset(
    {"Concat", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that copy values and compute none."""

LARGEST = 64 << 20
"""Bytes of a weight that is put together in memory, at most."""


def assembled(value: ir.Value | None, opset: int) -> NDArray[Any] | None:
    """Return the array that a value has in every run, None when it depends on more."""
    array = edit.const_array(value)
    if array is not None or value is None:
        return array
    node = value.producer()
    if node is None or node.domain or node.op_type not in PUTS_TOGETHER:
        return None
    parts = [None if part is None else assembled(part, opset) for part in node.inputs]
    given = zip(node.inputs, parts, strict=True)
    if any(found is None for part, found in given if part is not None):
        return None
    if sum(part.nbytes for part in parts if part is not None) > LARGEST:
        return None
    found = evaluate(node, parts, opset)
    return None if found is None else found[value.index() or 0]
