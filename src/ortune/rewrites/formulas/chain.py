"""Nodes that are made one after another and put into a graph together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from ortune.model.graph.edit import Attributes, Editor


class Chain:
    """Collects nodes that read each other, named after what they are made for.

    Attributes:
        nodes: In order, in no graph yet.
        editor: Names what is made.
    """

    def __init__(self, editor: Editor, stem: str) -> None:
        self.nodes: list[ir.Node] = []
        self.editor, self._stem = editor, stem

    def add(
        self, op: str, *inputs: ir.Value | None, attributes: Attributes | None = None
    ) -> ir.Value:
        """Add a node and return its only output."""
        return self.several(op, *inputs, attributes=attributes)[0]

    def several(
        self,
        op: str,
        *inputs: ir.Value | None,
        attributes: Attributes | None = None,
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        """Add a node and return its outputs."""
        name = f"{self._stem}_{op}"
        node = self.editor.node(op, inputs, attributes, name=name, outputs=outputs)
        self.nodes.append(node)
        return node.outputs

    def constant(self, label: str, array: ArrayLike, dtype: Any = np.int64) -> ir.Value:
        """Add a constant."""
        return self.editor.constant(f"{self._stem}_{label}", np.asarray(array, dtype))

    def cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        """Add a Cast."""
        return self.add("Cast", value, attributes={"to": to.value})
