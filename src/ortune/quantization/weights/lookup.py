"""Look up packed rows with standard operators, which every runtime has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.model.graph import edit
from ortune.quantization.block_grid import Packed
from ortune.quantization.weights.matmuls import TableLookup


def look_up(
    editor: edit.Editor, table: TableLookup, packed: Packed, parts: Sequence[ir.Value]
) -> ir.Value:
    """Gather packed rows, widen those found, and return them; nodes stand before the Gather.

    Constants of the table are integers of shape [rows, blocks, bytes], steps, zero points.
    """
    return _Chain(editor, table, packed).build(parts)


class _Chain:
    def __init__(self, editor: edit.Editor, table: TableLookup, packed: Packed) -> None:
        self._editor, self._table, self._packed = editor, table, packed
        self._dtype = table.rows.dtype

    def build(self, parts: Sequence[ir.Value]) -> ir.Value:
        spec, blocks = self._packed.spec, self._packed.scale.shape[1]
        found = self._wide(parts[0], (blocks, spec.block))
        if len(parts) > 2:
            zero = self._wide(parts[2], (-1,))
            if spec.bits == 4 and blocks % 2:
                zero = self._cut(zero, blocks)
            middle = self._last(zero)
        else:
            middle = self._number("middle", spec.middle)
        scale = self._last(self._node("Gather", [parts[1], self._table.indices], {"axis": 0}))
        centred = self._node("Sub", [found, middle])
        scaled = self._node("Mul", [centred, scale])
        flat = self._reshape(scaled, (blocks * spec.block,))
        short = blocks * spec.block != self._packed.width
        return self._cut(flat, self._packed.width) if short else flat

    def _wide(self, stored: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """Gather bytes and make floats of the integers in them, indices first in the shape."""
        some = self._node("Gather", [stored, self._table.indices], {"axis": 0})
        wide = self._node("Cast", [some], {"to": int(self._dtype)})
        if self._packed.spec.bits == 8:
            return wide
        # Whole floats below 256: dividing by 16 is exact, and Floor has kernels everywhere.
        sixteenth, sixteen = self._number("sixteenth", 1 / 16), self._number("sixteen", 16)
        high = self._node("Floor", [self._node("Mul", [wide, sixteenth])])
        low = self._node("Sub", [wide, self._node("Mul", [high, sixteen])])
        both = self._node("Concat", [self._last(low), self._last(high)], {"axis": -1})
        return self._reshape(both, shape)

    def _reshape(self, value: ir.Value, tail: tuple[int, ...]) -> ir.Value:
        shape = np.array([*[0] * self._table.rank, *tail], np.int64)
        return self._node("Reshape", [value, self._editor.constant("shape", shape)])

    def _cut(self, value: ir.Value, size: int) -> ir.Value:
        ends = [self._editor.constant("cut", np.array([n], np.int64)) for n in (0, size, -1)]
        return self._node("Slice", [value, *ends])

    def _last(self, value: ir.Value) -> ir.Value:
        axis = self._editor.constant("axis", np.array([-1], np.int64))
        return self._node("Unsqueeze", [value, axis])

    def _number(self, name: str, number: float) -> ir.Value:
        return self._editor.constant(name, np.asarray(number, self._dtype.numpy()))

    def _node(
        self, op: str, inputs: Sequence[ir.Value], attributes: dict[str, Any] | None = None
    ) -> ir.Value:
        node = self._table.node
        made = self._editor.node(op, inputs, attributes, name=f"{node.name}_{op}")
        edit.insert_before(node, made)
        return made.outputs[0]
