"""Convolutions of separate channels become one grouped convolution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune
from ortune.graph.ir.match import find_producer, nodes_of, read_scalar
from ortune.transforms.common.layers import affine
from ortune.transforms.common.simplify.constants import LARGE_BYTES


@dataclass(frozen=True)
class GroupConvs(Transform):
    """Make one grouped Conv of several that each read a share of the channels.

    Spelled as ``Concat(A * x1, B * x2, ...)`` with ``x1, x2, ... = Split(x)``, an activation
    behind each or none; or as one dense kernel whose weights between the shares are all zero::

        [A 0; 0 B] * [x1; x2]  =  [A * x1; B * x2]

    Depthwise convolutions are the case of one channel each. Exact. (The way back, from grouped to
    dense, pays in integers only: `widen-groups`.)

    Left alone: shares of different size, results that something else reads.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("Conv",),)

    def apply(self, model: ir.Model) -> int:
        editor = edit.Editor(model.graph)
        count = sum(_join_branches(model, editor, node) for node in nodes_of(model, "Concat"))
        count += sum(_split_dense_conv(editor, node) for node in nodes_of(model, "Conv"))
        if count:
            prune.drop_dead(model)
        return count


def _join_branches(model: ir.Model, editor: edit.Editor, concat: ir.Node) -> int:
    if edit.read_attribute(concat, "axis", 1) != 1 or len(concat.inputs) < 2:
        return 0
    candidates = [_find_branch(value, concat) for value in concat.inputs]
    branches = [branch for branch in candidates if branch is not None]
    if len(branches) < len(candidates):
        return 0
    reads = [branch.layer.node.inputs[0] for branch in branches]
    split = reads[0].producer() if reads[0] is not None else None
    if split is None or split.op_type != "Split" or split.domain or split.inputs[0] is None:
        return 0
    if edit.read_attribute(split, "axis", 0) != 1 or list(split.outputs) != reads:
        return 0
    if any(len(value.uses()) > 1 or value.is_graph_output() for value in split.outputs):
        edit.note_refusal(model, concat, "a share of the channels is read elsewhere too")
        return 0
    if len({branch.kind for branch in branches}) > 1:
        edit.note_refusal(model, concat, "the convolutions of the shares differ")
        return 0
    grouped = _build_grouped_conv(editor, branches, split.inputs[0], concat)
    if isinstance(grouped, str):
        edit.note_refusal(model, concat, grouped)
        return 0
    name = concat.outputs[0].name
    edit.redirect_uses(concat.outputs[0], grouped)
    edit.remove_node(concat)
    grouped.name = name
    return len(branches)


def _split_dense_conv(editor: edit.Editor, node: ir.Node) -> int:
    at, tensor = affine.as_foldable_layer(node), edit.const_tensor(node.inputs[1])
    if at is None or at.group != 1 or tensor is None or tensor.nbytes > LARGE_BYTES:
        return 0
    if 0 in at.shape or math.gcd(*at.shape[:2]) == 1:
        return 0
    weight = affine.read_fixed_input(at.node, 1)
    groups = 1 if weight is None else _count_groups(weight)
    if weight is None or groups == 1:
        return 0
    outputs, inputs = (size // groups for size in at.shape[:2])
    blocks = weight.reshape(groups, outputs, groups, inputs, *at.shape[2:])
    kept = np.stack([blocks[g, :, g] for g in range(groups)])
    grouped_weight = np.ascontiguousarray(kept.reshape(-1, inputs, *at.shape[2:]))
    at.node.replace_input_with(1, editor.add_constant(f"{at.node.name}_groups", grouped_weight))
    at.node.attributes["group"] = ir.AttrInt64("group", groups)
    return 1


def _count_groups(weight: NDArray[Any]) -> int:
    used = (weight != 0).any(axis=tuple(range(2, weight.ndim)))
    if used.mean() > 0.5:
        return 1
    most = math.gcd(*weight.shape[:2])
    for groups in range(most, 1, -1):
        if most % groups == 0:
            blocks = used.reshape(groups, used.shape[0] // groups, groups, -1).any(axis=(1, 3))
            if not (blocks & ~np.eye(groups, dtype=bool)).any():
                return groups
    return 1


_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Elu", "Tanh")
"""Operators on single values, which may stand behind each convolution or behind all."""


@dataclass(frozen=True)
class _Branch:
    """A convolution that one Concat alone reads, through an activation or not."""

    layer: affine.FoldableLayer
    activation: ir.Node | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What branches must have in common to be one convolution, but for what they read."""
        node, tensor = self.layer.node, edit.const_tensor(self.layer.node.inputs[1])
        space = len(self.layer.shape) - 2
        defaults = {"strides": (1,) * space, "dilations": (1,) * space, "pads": (0, 0) * space}
        settings = (
            edit.read_attribute(node, "auto_pad", "NOTSET"),
            edit.read_attribute(node, "group", 1),
            *(tuple(edit.read_attribute(node, name, usual)) for name, usual in defaults.items()),
            len(node.inputs) > 2 and node.inputs[2] is not None,
        )
        layer_kind = (self.layer.shape, None if tensor is None else tensor.dtype, settings)
        if self.activation is None:
            return layer_kind
        attributes = {name: attr.value for name, attr in self.activation.attributes.items()}
        limits = tuple(read_scalar(value) for value in self.activation.inputs[1:])
        return *layer_kind, self.activation.op_type, *sorted(attributes.items()), limits


def _find_branch(value: ir.Value | None, concat: ir.Node) -> _Branch | None:
    """Return the convolution behind an input of a Concat that nothing else reads."""
    if value is None or not edit.has_single_use(value):
        return None
    activation = find_producer(value, *_ACTIVATIONS)
    inner = activation.inputs[0] if activation is not None else value
    layer = affine.as_foldable_layer(find_producer(inner, "Conv"))
    if layer is None or inner is None or not edit.has_single_use(inner):
        return None
    limits = activation.inputs[1:] if activation is not None else ()
    if any(limit is not None and read_scalar(limit) is None for limit in limits):
        return None
    nodes = (layer.node, *([activation] if activation is not None else []))
    return _Branch(layer, activation) if all(n.graph is concat.graph for n in nodes) else None


def _build_grouped_conv(
    editor: edit.Editor, branches: Sequence[_Branch], source: ir.Value, concat: ir.Node
) -> ir.Value | str:
    """Return what one grouped convolution and activation make, or why there is none.

    Args:
        branches: All of one kind; the groups, in order.
        source: What the convolution reads: the inputs of all branches, side by side.
        concat: What reads the branches; the new nodes are put in front of it.
    """
    first, old = branches[0].layer.node, branches[0].activation
    tensors = [edit.const_tensor(branch.layer.node.inputs[1]) for branch in branches]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > LARGE_BYTES:
        return "their weights are too large to be joined"
    inputs = [source]
    for index, label in enumerate(("weights", "biases"), 1):
        values = [b.layer.node.inputs[index] for b in branches if index < len(first.inputs)]
        if any(value is None for value in values) or not values:
            continue
        if index == 1 and any(value is not None and len(value.uses()) > 1 for value in values):
            return "a weight is read elsewhere too"
        arrays = [affine.read_fixed_input(branch.layer.node, index) for branch in branches]
        parts = [array for array in arrays if array is not None]
        inputs.append(editor.add_constant(f"{first.name}_{label}", np.concatenate(parts)))
    attributes = {name: attr.value for name, attr in first.attributes.items()}
    attributes["group"] = branches[0].layer.group * len(branches)
    dtype = first.outputs[0].dtype
    conv = editor.add_node(
        first, "Conv", inputs, attributes, name=f"{first.name}_joined", dtype=dtype
    )
    if old is None:
        return conv
    attributes = {name: attr.value for name, attr in old.attributes.items()}
    name, behind = f"{old.name}_joined", [conv, *old.inputs[1:]]
    return editor.add_node(concat, old.op_type, behind, attributes, name=name, dtype=dtype)
