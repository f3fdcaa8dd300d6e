"""The exact rewrites in front of static int8, and the pairs that it puts behind them.

Sixteen-bit pairs are standard operators from opset 21 on, and onnxruntime's own before. No kernel
of its CPU provider computes with them: between such pairs it computes in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.core.observer import Range, Ranges
from ortune.graph.ir import edit, prune
from ortune.graph.ir.match import nodes_of
from ortune.graph.ir.qdq import MICROSOFT, find_input
from ortune.graph.ir.uses import has_single_use, only_reader
from ortune.quantizers.common.grid import Grid, Kind, make_activation_grid
from ortune.quantizers.common.layers import flatten_model
from ortune.quantizers.common.node_filter import match_nodes
from ortune.quantizers.common.nodes import (
    add_constants,
    add_unary_sum,
    make_dequantize,
    multiply_channels,
    put_behind,
    replace_output,
    replace_value,
)
from ortune.quantizers.common.qdq.placement import (
    Placement,
    find_integer_output,
    float_inputs,
    is_absorbed,
)
from ortune.quantizers.common.qdq.runtime_rules import MOVING, Target
from ortune.quantizers.common.qdq.smooth import Smoothing
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


WIDE_OPSET = 21
"""From here on the standard pair knows 16 bits."""


_ALONE = ("HardSigmoid",)
"""Beside one of these, which nothing fuses, a second DequantizeLinear is cheaper than the copy."""


class PairInserter:
    """Puts pairs into one graph, each grid once; `foreign`: one is of com.microsoft."""

    def __init__(
        self,
        editor: edit.Editor,
        grids: Mapping[ir.Value, Grid],
        smooth: Mapping[ir.Value, Smoothing],
        opset: int,
    ) -> None:
        self._editor = editor
        self._grids = grids
        self._smooth = smooth
        self._opset = opset
        self.foreign = False

    def insert_pairs(self, placement: Placement) -> None:
        """Put a pair behind every chosen tensor and turn its readers to the rounded values."""
        readers = {layer.node for layer in placement.layers} | placement.followers
        home = placement.graph
        shared: dict[ir.Value, list[ir.Value]] = {}
        for value, source in placement.tensors.items():
            if source not in shared:
                grid = self._grids[value]
                stem = str(source.name)
                shared[source] = add_constants(
                    self._editor, stem, scale=grid.scale, zero=grid.zero
                )
            seen = value
            if value in placement.guarded:
                # It keeps the float layer before it in float: between a DequantizeLinear and a
                # QuantizeLinear onnxruntime quantizes the weights of a layer itself, coarsely
                # (weight_bias_quantization.cc).
                seen = add_unary_sum(self._editor, value, "float")
            if value in self._smooth and (factor := self._smooth[value].factor) is not None:
                seen = multiply_channels(
                    self._editor, value, (1 / factor).astype(np.float32), home
                )
            whole = value in placement.replaced
            self._insert_pair(value, seen, home, shared[source], readers, all_readers=whole)

    def _insert_pair(
        self,
        value: ir.Value,
        seen: ir.Value,
        home: ir.Graph,
        grid: Sequence[ir.Value],
        readers: set[ir.Node],
        *,
        all_readers: bool,
    ) -> None:
        uses = [u for u in value.uses() if all_readers or u.node in readers]
        uses = [u for u in uses if u.node is not seen.producer()]
        wide = grid[1].dtype in (ir.DataType.UINT16, ir.DataType.INT16)
        self.foreign |= wide and self._opset < WIDE_OPSET
        stem, domain = str(value.name), (MICROSOFT if wide and self._opset < WIDE_OPSET else "")
        q = self._editor.make_node(
            "QuantizeLinear", [seen, *grid], name=f"{stem}_q", domain=domain
        )
        q.outputs[0].shape, q.outputs[0].dtype = value.shape, grid[1].dtype or ir.DataType.UINT8
        d = make_dequantize(self._editor, stem, [q.outputs[0], *grid], domain=domain)
        rounded = d.outputs[0]
        put_behind(seen, home, q, d)
        outside = [use for use in uses if use.node not in readers]
        if len(outside) > (2 if any(n.op_type in _ALONE for n, _ in outside) else 1):
            # Float readers share one tensor: what onnxruntime fuses of them (Gelu) reads it twice,
            # and it dequantizes for each reader anew.
            shared = add_unary_sum(self._editor, rounded, "shared")
            for node, index in outside:
                node.replace_input_with(index, shared)
            uses = [use for use in uses if use.node in readers]
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if all_readers and value.is_graph_output():
            replace_output(self._editor, home, value, rounded)


def make_activation_grids(
    placement: Placement,
    ranges: Ranges,
    smooth: Mapping[ir.Value, Smoothing],
    wide: Collection[ir.Node],
    *,
    kind: Literal["u8", "s8", "by-sign"],
    symmetric: bool,
    absorbs: bool = False,
) -> dict[ir.Value, Grid]:
    """Return the grid of every tensor of a graph that gets a pair.

    Activations of `wide` nodes take 16 bits, with all tensors on the same grid.

    Args:
        kind: ``by-sign`` is unsigned where nothing is negative, and signed elsewhere.
        absorbs: The grid behind a Relu or Clip begins at 0 in any case: a kernel absorbs no other.
    """

    def make_grid(seen: Range, wide: bool, absorbed: bool) -> Grid:
        signed = kind == "s8" or (kind == "by-sign" and seen.low < 0)
        chosen: Kind = ("s16" if signed else "u16") if wide else ("s8" if signed else "u8")
        centred = symmetric and not absorbed and (signed or kind != "by-sign")
        return make_activation_grid(seen, chosen, symmetric=centred)

    touched = {value for node in wide for value in (*float_inputs(node), *node.outputs)}
    touched |= {find_integer_output(node) for node in wide}
    sources = {placement.tensors[value] for value in touched if value in placement.tensors}
    return {
        value: make_grid(
            smooth[value].seen if value in smooth else ranges[str(source.name)],
            source in sources,
            absorbs and is_absorbed(source),
        )
        for value, source in placement.tensors.items()
    }
