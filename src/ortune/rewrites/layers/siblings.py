"""Convolutions side by side, each with an activation or not, as one grouped convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.model.graph.edit import Editor, attribute, const_tensor, insert_before
from ortune.model.graph.match import maker, number
from ortune.model.graph.uses import alone
from ortune.rewrites.layers.affine import constant
from ortune.rewrites.layers.foldable import FoldableLayer, foldable
from ortune.rewrites.simplify.constants import LARGE_BYTES

ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Elu", "Tanh")
"""Operators on single values, which may stand behind each convolution or behind all."""


@dataclass(frozen=True)
class Branch:
    """A convolution that one Concat alone reads, through an activation or not."""

    layer: FoldableLayer
    activation: ir.Node | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What branches must have in common to be one convolution, but for what they read."""
        node, tensor = self.layer.node, const_tensor(self.layer.node.inputs[1])
        space = len(self.layer.shape) - 2
        defaults = {"strides": (1,) * space, "dilations": (1,) * space, "pads": (0, 0) * space}
        settings = (
            attribute(node, "auto_pad", "NOTSET"),
            attribute(node, "group", 1),
            *(tuple(attribute(node, name, usual)) for name, usual in defaults.items()),
            len(node.inputs) > 2 and node.inputs[2] is not None,
        )
        found = (self.layer.shape, None if tensor is None else tensor.dtype, settings)
        if self.activation is None:
            return found
        attributes = {name: attr.value for name, attr in self.activation.attributes.items()}
        limits = tuple(number(value) for value in self.activation.inputs[1:])
        return *found, self.activation.op_type, *sorted(attributes.items()), limits


def branch(value: ir.Value | None, concat: ir.Node) -> Branch | None:
    """Return the convolution behind an input of a Concat that nothing else reads."""
    if value is None or not alone(value):
        return None
    activation = maker(value, *ACTIVATIONS)
    inner = activation.inputs[0] if activation is not None else value
    layer = foldable(maker(inner, "Conv"))
    if layer is None or inner is None or not alone(inner):
        return None
    limits = activation.inputs[1:] if activation is not None else ()
    if any(limit is not None and number(limit) is None for limit in limits):
        return None
    nodes = (layer.node, *([activation] if activation is not None else []))
    return Branch(layer, activation) if all(n.graph is concat.graph for n in nodes) else None


def grouped(
    editor: Editor, branches: Sequence[Branch], source: ir.Value, concat: ir.Node
) -> ir.Value | str:
    """Return what one grouped convolution and activation make, or why there is none.

    Args:
        editor: Adds weights and nodes.
        branches: All of one kind; the groups, in order.
        source: What the convolution reads: the inputs of all branches, side by side.
        concat: What reads the branches; the new nodes are put in front of it.
    """
    first, old = branches[0].layer.node, branches[0].activation
    tensors = [const_tensor(one.layer.node.inputs[1]) for one in branches]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > LARGE_BYTES:
        return "their weights are too large to be joined"
    inputs = [source]
    for index, label in enumerate(("weights", "biases"), 1):
        values = [one.layer.node.inputs[index] for one in branches if index < len(first.inputs)]
        if any(value is None for value in values) or not values:
            continue
        if index == 1 and any(value is not None and len(value.uses()) > 1 for value in values):
            return "a weight is read elsewhere too"
        arrays = [constant(one.layer.node, index) for one in branches]
        parts = [array for array in arrays if array is not None]
        inputs.append(editor.constant(f"{first.name}_{label}", np.concatenate(parts)))
    attributes = {name: attr.value for name, attr in first.attributes.items()}
    attributes["group"] = branches[0].layer.group * len(branches)
    conv = editor.node("Conv", inputs, attributes, name=f"{first.name}_joined")
    conv.outputs[0].type = first.outputs[0].type
    insert_before(first, conv)
    if old is None:
        return conv.outputs[0]
    attributes = {name: attr.value for name, attr in old.attributes.items()}
    behind = [conv.outputs[0], *old.inputs[1:]]
    activation = editor.node(old.op_type, behind, attributes, name=f"{old.name}_joined")
    activation.outputs[0].type = conv.outputs[0].type
    insert_before(concat, activation)
    return activation.outputs[0]
