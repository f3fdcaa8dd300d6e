"""Casts that a conversion leaves over."""

from __future__ import annotations

import onnx_ir as ir

from ortune.model.graph import edit


def clean(model: ir.Model) -> int:
    """Remove Casts that change nothing and return how many went.

    Those are Casts to the type that a value has, and a Cast back behind one that widened. A Cast
    back behind one that narrowed rounds, and stays.
    """
    count = 0
    for node in edit.every_node(model):
        if node.op_type != "Cast" or node.domain or node.outputs[0].is_graph_output():
            continue
        source = node.inputs[0]
        to = ir.DataType(edit.attribute(node, "to", 0))
        if source is None or node.graph is None:
            continue
        before = source.producer()
        same = source.dtype == to
        if not same and before is not None and before.op_type == "Cast" and not before.domain:
            origin = before.inputs[0]
            if origin is not None and origin.dtype == to and _widens(to, source.dtype):
                source, same = origin, True
        if same:
            node.outputs[0].replace_all_uses_with(source)
            node.graph.remove(node, safe=True)
            count += 1
    for node in reversed(list(edit.every_node(model))):
        dead = node.op_type == "Cast" and not node.domain and not node.outputs[0].uses()
        if dead and not node.outputs[0].is_graph_output() and node.graph is not None:
            node.graph.remove(node, safe=True)
    return count


def _widens(one: ir.DataType, two: ir.DataType | None) -> bool:
    return one in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and two == ir.DataType.FLOAT
