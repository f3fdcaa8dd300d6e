"""What rewrites one node in an older opset, and the rewrites that many operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from ortune.model.graph.edit import Attributes, Editor, attribute, const_array, discard
from ortune.model.graph.replace import forward
from ortune.model.graph.values import overridable

Adapted: TypeAlias = Sequence[ir.Node] | str | None
"""New nodes in the place of the old; why there is no way; or None: the node itself was changed."""


class Lowering:
    """What adapters work with.

    Attributes:
        editor: Of the main graph.
        version: The opset that is wanted.
        notes: What a person should know.
    """

    def __init__(self, editor: Editor, version: int) -> None:
        self.editor, self.version = editor, version
        self.notes: list[str] = []

    def replace(self, node: ir.Node, made: Sequence[ir.Node]) -> Sequence[ir.Node]:
        """Put nodes in the place of one; the last ones make its outputs, one each."""
        graph = node.graph
        if graph is None:
            raise ValueError(f"node '{node.name}' is in no graph")
        graph.insert_before(node, made)
        named = list(node.outputs)
        for old, new in zip(named, made[-len(named) :], strict=True):
            value = new.outputs[0]
            value.type, value.shape = old.type, old.shape
            forward(old, value)
        parts = list(node.inputs)
        graph.remove(node, safe=True)
        for part in parts:
            discard(part)
        return made

    def make(
        self,
        node: ir.Node,
        op: str,
        *inputs: ir.Value | None,
        attributes: Attributes | None = None,
    ) -> ir.Node:
        """Make a node named after the one it stands for."""
        return self.editor.node(op, inputs, attributes, name=f"{node.name}_{op}")

    def constant(self, node: ir.Node, label: str, array: ArrayLike, dtype: Any) -> ir.Value:
        """Make a constant named after a node."""
        return self.editor.constant(f"{node.name}_{label}", np.asarray(array, dtype))


Adapter: TypeAlias = Callable[[Lowering, ir.Node], Adapted]


def into_attribute(index: int, name: str, *, scalar: bool = False) -> Adapter:
    """Turn a constant input into an attribute; the inputs behind it must be gone already."""

    def adapt(work: Lowering, node: ir.Node) -> Adapted:
        if len(node.inputs) <= index:
            return None
        value = node.inputs[index]
        if value is not None:
            array = const_array(value)
            if array is None or overridable(value):
                return f"its {name} are computed, and were fixed there"
            kind = array.dtype.kind
            if scalar:
                one = array.reshape(-1)[0].item()
                made = ir.AttrFloat32(name, one) if kind == "f" else ir.AttrInt64(name, one)
            else:
                made = ir.AttrInt64s(name, [int(x) for x in array.reshape(-1)])
            node.attributes.add(made)
        node.resize_inputs(index)
        if value is not None:
            discard(value)
        return None

    return adapt


def values(name: str, *allowed: str) -> Adapter:
    """Refuse a value of a text attribute that the older operator does not know."""

    def adapt(work: Lowering, node: ir.Node) -> Adapted:
        found = attribute(node, name, allowed[0])
        return None if found in allowed else f"it has no {name} {found} there"

    return adapt


def written(name: str, default: Any, older: Any) -> Adapter:
    """Refuse where the older operator means another default."""

    def adapt(work: Lowering, node: ir.Node) -> Adapted:
        same = attribute(node, name, default) == older
        return None if same else f"it has no {name} {attribute(node, name, default)} there"

    return adapt


def without(name: str) -> Adapter:
    """Refuse an attribute that changes what is computed, unless it is 0 or absent."""

    def adapt(work: Lowering, node: ir.Node) -> Adapted:
        if attribute(node, name, 0):
            return f"it has no {name} there"
        node.attributes.pop(name, None)
        return None

    return adapt


def dropped(name: str) -> Adapter:
    """Drop what says something of types only that are not there."""

    def adapt(work: Lowering, node: ir.Node) -> Adapted:
        node.attributes.pop(name, None)
        return None

    return adapt
