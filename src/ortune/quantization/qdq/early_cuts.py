"""A Relu or Clip right behind its convolution, before what only moves values.

An integer convolution absorbs a Relu that stands behind it; behind a MaxPool it is a node of its
own between two pairs. Both orders give the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.uses import alone
from ortune.quantization.qdq.placement import absorbed
from ortune.quantization.qdq.runtime_rules import MOVING
from ortune.quantization.replace import stand_in

_MOVES = ("DepthToSpace", *MOVING)


def cut_early(model: ir.Model, left: Collection[ir.Node]) -> int:
    """Take every such node to its convolution in place, and return how many were moved.

    Args:
        left: Nodes that stay as they are, as do those behind them.
    """
    editor, count = edit.Editor(model.graph), 0
    for node in edit.every_node(model):
        movers = list(_movers(node)) if node.outputs and absorbed(node.outputs[0]) else []
        conv = movers[-1].inputs[0].producer() if movers and movers[-1].inputs[0] else None
        if conv is not None and _convolves(conv, node) and not {conv, node, *movers} & set(left):
            value = conv.outputs[0]
            made = editor.node(
                node.op_type, [value, *node.inputs[1:]], node.attributes, name=f"{node.name}_early"
            )
            made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
            edit.insert_after(conv, made)
            movers[-1].replace_input_with(0, made.outputs[0])
            stand_in(node.outputs[0], movers[0].outputs[0])
            count += 1
    return count


def _movers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in front that only move values, and that nothing else reads."""
    value = node.inputs[0]
    while value is not None and alone(value):
        mover = value.producer()
        if mover is None or mover.op_type not in _MOVES or mover.domain or len(mover.outputs) > 1:
            return
        yield mover
        value = mover.inputs[0]


def _convolves(node: ir.Node, reader: ir.Node) -> bool:
    plain = node.op_type == "Conv" and not node.domain and node.graph is reader.graph
    return plain and alone(node.outputs[0])
