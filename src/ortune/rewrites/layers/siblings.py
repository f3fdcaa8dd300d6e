"""Layers of one operator that read one tensor, and their weights side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph.edit import Editor, attribute, const_array, const_tensor, insert_before
from ortune.model.graph.match import maker, number
from ortune.model.graph.replace import forward
from ortune.model.graph.uses import alone
from ortune.rewrites.layers.affine import constant
from ortune.rewrites.layers.foldable import Host, host
from ortune.rewrites.simplify.constants import LARGE_BYTES

_PLAIN: Mapping[str, Any] = {"auto_pad": "NOTSET", "group": 1, "alpha": 1.0, "beta": 1.0}
_ZERO = ("transA", "transB")


ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Elu", "Tanh")
"""Operators on single values, which may stand behind each layer or behind all."""


@dataclass(frozen=True)
class Branch:
    """A convolution that one Concat alone reads, through an activation or not."""

    at: Host
    activation: ir.Node | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What branches have in common that could be one, but for what they read."""
        if self.activation is None:
            return kind(self.at)
        attributes = {name: attr.value for name, attr in self.activation.attributes.items()}
        limits = tuple(number(value) for value in self.activation.inputs[1:])
        return *kind(self.at), self.activation.op_type, *sorted(attributes.items()), limits


def branch(value: ir.Value | None, concat: ir.Node) -> Branch | None:
    """Return the convolution behind an input of a Concat that nothing else reads."""
    if value is None or not alone(value):
        return None
    activation = maker(value, *ACTIVATIONS)
    inner = activation.inputs[0] if activation is not None else value
    at = host(maker(inner, "Conv"))
    if at is None or inner is None or not alone(inner):
        return None
    limits = activation.inputs[1:] if activation is not None else ()
    if any(limit is not None and number(limit) is None for limit in limits):
        return None
    nodes = (at.node, *([activation] if activation is not None else []))
    return Branch(at, activation) if all(n.graph is concat.graph for n in nodes) else None


def one_branch(
    editor: Editor,
    branches: Sequence[Branch],
    concat: ir.Node,
    *,
    grouped: ir.Value | None = None,
) -> ir.Value | str:
    """Return what one convolution and one activation make of all branches, or why there is none.

    Args:
        editor: Adds weights and nodes.
        branches: All of one kind.
        concat: The activation is put in front of it.
        grouped: As in `side_by_side`.
    """
    made = side_by_side(editor, [one.at for one in branches], grouped=grouped)
    old = branches[0].activation
    if isinstance(made, str) or old is None:
        return made if isinstance(made, str) else made.outputs[0]
    attributes = {name: attr.value for name, attr in old.attributes.items()}
    inputs = [made.outputs[0], *old.inputs[1:]]
    node = editor.node(old.op_type, inputs, attributes, name=f"{old.name}_joined")
    node.outputs[0].type = made.outputs[0].type
    insert_before(concat, node)
    return node.outputs[0]


def families(nodes: Iterable[ir.Node], op: str) -> list[list[Host]]:
    """Return the layers of an operator by what they read and how: two and more that could be one.

    Those of one family differ in their output channels alone. All have a bias or none has.
    """
    found: dict[Any, list[Host]] = {}
    for node in nodes:
        at = host(node) if node.op_type == op and not node.domain else None
        if at is None or at.group != 1 or node.inputs[0] is None:
            continue
        found.setdefault((node.inputs[0], kind(at)), []).append(at)
    return [family for family in found.values() if len(family) > 1]


def kind(at: Host) -> tuple[Any, ...]:
    """Return what layers have in common that could be one, but for what they read."""
    node, tensor = at.node, const_tensor(at.node.inputs[1])
    axis = output_axis(at)
    shape = tuple(size for i, size in enumerate(at.shape) if i != axis)
    names = ("auto_pad", "group", "alpha", "beta", *_ZERO)
    plain = tuple(attribute(node, name, _PLAIN.get(name, 0)) for name in names)
    space = len(at.shape) - 2
    steps = tuple(
        tuple(attribute(node, name, (default,) * count * space))
        for name, default, count in (("strides", 1, 1), ("dilations", 1, 1), ("pads", 0, 2))
    )
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    dtype = None if tensor is None else tensor.dtype
    return node.op_type, dtype, shape, plain, steps, biased


def output_axis(at: Host) -> int:
    """Return the axis of the weight that holds the output channels."""
    if at.node.op_type == "Conv" or attribute(at.node, "transB", 0):
        return 0
    return 1


def side_by_side(
    editor: Editor, layers: Sequence[Host], *, grouped: ir.Value | None = None
) -> ir.Node | str:
    """Make one layer that computes the channels of all, in order; or say why there is none.

    It is put in front of the first, where what it reads is there already.

    Args:
        editor: Adds the weights.
        layers: All of one `kind`.
        grouped: What a grouped convolution reads whose groups are the layers; None where they
            read one tensor.
    """
    first = layers[0]
    tensors = [const_tensor(at.node.inputs[1]) for at in layers]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > LARGE_BYTES:
        return "their weights are too large to be joined"
    if any(len(value.uses()) > 1 for at in layers for value in at.node.inputs[1:2] if value):
        return "a weight is read elsewhere too"
    arrays = [constant(at.node, 1) for at in layers]
    weight = np.concatenate([a for a in arrays if a is not None], output_axis(first))
    stem = str(first.node.name)
    inputs = [grouped or first.node.inputs[0], editor.constant(f"{stem}_weights", weight)]
    if len(first.node.inputs) > 2 and first.node.inputs[2] is not None:
        biases = [_bias(at) for at in layers]
        if any(bias is None for bias in biases):
            return "a bias is not one number a channel"
        joined = np.concatenate([bias for bias in biases if bias is not None])
        inputs.append(editor.constant(f"{stem}_biases", joined))
    attributes = {name: attr.value for name, attr in first.node.attributes.items()}
    if grouped is not None:
        attributes["group"] = first.group * len(layers)
    made = editor.node(first.node.op_type, inputs, attributes, name=f"{stem}_joined")
    made.outputs[0].type = first.node.outputs[0].type
    insert_before(first.node, made)
    return made


def split(
    editor: Editor, at: ir.Node, value: ir.Value, ends: Sequence[ir.Value], sizes: Sequence[int],
    *, axis: int, opset: int,
) -> None:  # fmt: skip
    """Let every reader of one of `ends` read its share of `value`.

    Args:
        editor: Names the node.
        at: The new Split goes in front of it.
        value: The joined channels.
        ends: What the parts were.
        sizes: Channels of each.
        axis: Of the channels.
        opset: From 13 on the sizes are an input.
    """
    stem = f"{value.name}_parts"
    inputs = [value]
    attributes: dict[str, Any] = {"axis": axis}
    if opset >= 13:
        inputs.append(editor.constant(f"{stem}_sizes", np.array(sizes, np.int64)))
    else:
        attributes["split"] = list(sizes)
    made = editor.node("Split", inputs, attributes, name=stem, outputs=len(ends))
    insert_before(at, made)
    for part, end in zip(made.outputs, ends, strict=True):
        name, part.type, part.shape = end.name, end.type, end.shape
        forward(end, part)
        end.name = None
        part.name = name


def _bias(at: Host) -> NDArray[Any] | None:
    array = const_array(at.node.inputs[2])
    if array is None:
        return None
    if at.node.op_type == "Conv":
        return array
    if array.size in (1, at.outputs) and array.ndim < 3 and array.shape[:-1] in ((), (1,)):
        return np.broadcast_to(array.reshape(-1), (at.outputs,))
    return None
