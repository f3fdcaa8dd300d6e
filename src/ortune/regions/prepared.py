"""Regions given the constants that preparing steps made of theirs, all others as they were."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.model.graph import edit


class Prepared:
    """What preparing steps changed in a model: constants that nodes of the main graph read."""

    def __init__(self, plain: ir.Model, prepared: ir.Model) -> None:
        """Compare the model before these steps with the one behind them.

        Raises:
            Refused: They changed more than that.
            OutOfTime: The time of what is being built is up.
        """
        others = {node.name: node for node in prepared.graph}
        if others.keys() != {node.name for node in plain.graph}:
            raise Refused("preparing steps change the graph", fix="compare with what they made")
        self._made = {
            str(node.name): dict(_changed(node, others[node.name])) for node in plain.graph
        }

    def give(self, model: ir.Model, names: Collection[str]) -> None:
        """Put the constants of some nodes into a model like the one before, in place."""
        editor = edit.Editor(model.graph)
        for node in model.graph:
            made = self._made[str(node.name)] if node.name in names else {}
            if made:
                node.resize_inputs(max(len(node.inputs), 1 + max(made)))
            for place, tensor in made.items():
                value = editor.constant(f"{node.name}/prepared", tensor.numpy())
                node.replace_input_with(place, value)


def _changed(node: ir.Node, other: ir.Node) -> Iterator[tuple[int, ir.TensorProtocol]]:
    """Yield where two nodes of one name read different constants, and the other's.

    Raises:
        Refused: They differ in more, or read bodies, where nobody looks.
    """
    if node.op_type != other.op_type or any(edit.bodies(node)):
        raise Refused(f"{node.name} has a body, or is another", fix="compare with what they made")
    for place, value in enumerate(other.inputs):
        old = node.inputs[place] if place < len(node.inputs) else None
        tensor, before = edit.const_tensor(value), edit.const_tensor(old)
        if tensor is not None and (before is None or not _same(before, tensor)):
            yield place, tensor


def _same(one: ir.TensorProtocol, two: ir.TensorProtocol) -> bool:
    if (one.dtype, tuple(one.shape)) != (two.dtype, tuple(two.shape)):
        return False
    return one.dtype == ir.DataType.STRING or np.array_equal(one.numpy(), two.numpy())
