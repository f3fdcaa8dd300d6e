"""The exact rewrites in front of static int8: what then gets pairs is what kernels take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from ortune.core import wording
from ortune.graph.ir import edit, prune
from ortune.graph.ir.match import nodes_of
from ortune.graph.ir.qdq import find_input
from ortune.graph.ir.uses import has_single_use, only_reader
from ortune.quantizers.common.layers import flatten_model
from ortune.quantizers.common.node_filter import match_nodes
from ortune.quantizers.common.nodes import replace_value
from ortune.quantizers.common.qdq.placement import is_absorbed
from ortune.quantizers.common.qdq.runtime_rules import MOVING, Target
from ortune.transforms.common.layers.affine import (
    UNCHANGED,
    Absorber,
    Affine,
    FoldableLayer,
    as_foldable_layer,
    of_batch_norm,
    read_affine,
)
from ortune.transforms.common.layers.convolutions import (
    split_conv_transposes,
    spread_channels_last,
    subsample_once,
    widen_groups,
)

_MOVES = ("DepthToSpace", *MOVING)


def cut_early(model: ir.Model, excluded: Collection[ir.Node]) -> int:
    """Move a Relu or Clip right behind its convolution, before what only moves values.

    An integer convolution absorbs a Relu that stands behind it; behind a MaxPool it is a node of
    its own between two pairs. Both orders give the same values. Returns how many were moved.

    Args:
        excluded: Nodes that stay as they are, as do those behind them.
    """
    editor, count = edit.Editor(model.graph), 0
    for node in edit.walk_nodes(model):
        movers = list(_list_movers(node)) if node.outputs and is_absorbed(node.outputs[0]) else []
        conv = movers[-1].inputs[0].producer() if movers and movers[-1].inputs[0] else None
        if (
            conv is not None
            and _is_lone_conv(conv, node)
            and not {conv, node, *movers} & set(excluded)
        ):
            value = conv.outputs[0]
            early_node = editor.make_node(
                node.op_type, [value, *node.inputs[1:]], node.attributes, name=f"{node.name}_early"
            )
            early_node.outputs[0].shape, early_node.outputs[0].type = value.shape, value.type
            edit.insert_after(conv, early_node)
            movers[-1].replace_input_with(0, early_node.outputs[0])
            replace_value(node.outputs[0], movers[0].outputs[0])
            count += 1
    return count


def _list_movers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in front that only move values, and that nothing else reads."""
    value = node.inputs[0]
    while value is not None and has_single_use(value):
        mover = value.producer()
        if mover is None or mover.op_type not in _MOVES or mover.domain or len(mover.outputs) > 1:
            return
        yield mover
        value = mover.inputs[0]


def _is_lone_conv(node: ir.Node, reader: ir.Node) -> bool:
    plain = node.op_type == "Conv" and not node.domain and node.graph is reader.graph
    return plain and has_single_use(node.outputs[0])


def fold_affine_nodes(model: ir.Model) -> int:
    """Fold into the convolutions of the main graph and all bodies; return how many nodes went.

    Add, Sub, Mul and Div with constants of one value a channel, BatchNormalization and Identity
    are folded where they are the only reader.
    """
    absorber = Absorber(edit.Editor(model.graph))
    opset = model.opset_imports.get("", 0)
    count = 0
    for node in nodes_of(model, "Conv", "ConvTranspose"):
        at, weight = as_foldable_layer(node), edit.const_tensor(find_input(node, 1))
        if at is not None and weight is not None and weight.dtype == ir.DataType.FLOAT:
            count += _fold_behind(absorber, at, opset) if weight.size else 0
    if count:
        prune.drop_dead(model)
    return count


def _fold_behind(absorber: Absorber, at: FoldableLayer, opset: int) -> int:
    affine, chain, value = UNCHANGED, [], at.node.outputs[0]
    while (node := only_reader(value)) is not None and node.graph is at.node.graph:
        next_affine = _read_affine(node, value, at, opset)
        if next_affine is None or not next_affine.finite:
            break
        affine = affine.compose_with(next_affine)
        chain.append(node)
        value = node.outputs[0]
    return len(chain) if chain and absorber.absorb_output_affine(at, affine, chain) is None else 0


def _read_affine(node: ir.Node, value: ir.Value, at: FoldableLayer, opset: int) -> Affine | None:
    """Say what a node does to a convolution's output, None when that is no affine map."""
    if node.domain:
        return None
    match node.op_type:
        case "Identity":
            return UNCHANGED
        case "BatchNormalization" if node.inputs[0] is value:
            affine = of_batch_norm(node, opset)
            return None if isinstance(affine, str) else affine
        case _:
            return read_affine(node, value, at.channels, opset)


_GROUP = 32
"""Channels in a group from which the CPU provider's integer convolution is fast."""


def prepare_for_int8(
    model: ir.Model, target: Target, exclude: Sequence[str], *, split: bool, spread: bool
) -> None:
    """Inline functions, fold scales into convolutions, and rewrite what has no integer kernel.

    Args:
        exclude: Patterns of nodes that stay as they are.
        split: Write ConvTranspose as Conv and DepthToSpace.
        spread: On the CPU, write DepthToSpace with channels last.
    """
    flatten_model(model)
    fold_affine_nodes(model)
    excluded = match_nodes(model, exclude, "exclude")
    if split:
        split_conv_transposes(model, excluded)
    if target == "cpu":
        cut_early(model, excluded)
        if spread:
            spread_channels_last(model)
    if target == "openvino":
        subsample_once(model, excluded)


def widen_convolutions(model: ir.Model, exclude: Sequence[str]) -> None:
    """Give grouped convolutions as many channels a group as the CPU's kernel is fast with."""
    count = widen_groups(model, _GROUP, match_nodes(model, exclude, "exclude"))
    if count:
        groups = wording.format_count(count, "grouped convolution")
        edit.add_note(model, f"{groups} made to have {_GROUP} channels a group")
